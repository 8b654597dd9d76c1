"""Squared distances, written out as |a|² + |b|² − 2ab, of which near points leave less than FP16's steps at |a|².

squared_distances tells which sums are such, and what is made of them on the way to where they are read. Of the others each is a
form of the rule lost_difference, by what reads them: a choice, a comparison, an exponent or a logarithm of a sum of
exponentials; or they are given out.
"""
