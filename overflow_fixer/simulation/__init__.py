"""A typed model run as FP16 hardware would run it, and where it rounds."""
