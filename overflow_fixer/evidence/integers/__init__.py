"""Numbers that are counted rather than measured: ids, positions, coordinates, whole turns.

multiples tells which tensors FP16 holds, which nearly all rules ask; coordinates what is made of integers alone, places which
coordinates are far, cuts which data become other integers where a Cast cuts them, interpolated which are between two cells that
are weighed, and turns what angle a sine is of.
"""
