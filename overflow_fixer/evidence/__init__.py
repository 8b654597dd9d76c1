"""What the rules judge by: what follows from the graph and the measured ranges for more than one node at a time.

Nothing here pins a node. Each module answers one question of a (graph, ranges), once for all nodes. Read first what the others
ask: semantics (what operators do with what they read), paths (ways through a graph), measured (what a scan saw) and origins
(what a tensor is made of, as far as its rounding matters). The packages are what FP16 does harm to: values that are too large
(constants, masks) or too small (zeros), counted ones (integers), and what is left of nearly equal ones (differences, distances,
features; kernels for what constant weights make of them).
"""
