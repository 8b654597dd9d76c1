"""Plans tried out, each in a folder of its own, so that a run that was killed goes on behind them."""
