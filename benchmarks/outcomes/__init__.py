"""Whether what each tool makes of a network is right: on data it has not seen, and at what share of FP32."""
