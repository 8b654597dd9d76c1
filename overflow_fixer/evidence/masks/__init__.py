"""Masks: constants so far from all else that a Softmax makes zeros of what they are added to."""
