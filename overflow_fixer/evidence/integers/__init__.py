"""Numbers that are counted rather than measured: ids, positions, coordinates, whole turns."""
