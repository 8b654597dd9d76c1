"""What the rules judge by: what follows from the graph and the measured ranges for more than one node at a time.

Nothing here pins a node. Each module answers one question of a (graph, ranges), once for all nodes.
"""
