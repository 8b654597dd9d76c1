"""Masks: constants so far from all else that a Softmax makes zeros of what they are added to.

mask_verdicts holds the proof that FP16 does as FP32 does, and gives it for each mask. mask_walk follows masks to there, and tells
of what they meet as masked_scores; mask_rows asks for rows that are masked as a whole; mask_ends and mask_conditions tell that some
element of every row is left.
"""
