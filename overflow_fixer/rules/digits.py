"""Numbers in reasons, with as many digits as the sentence needs."""


def tell_over(value: float, limit: float) -> str:
    """Six digits; nine where six would not tell the value from the limit that it is over."""
    short = f"{value:.6g}"
    return f"{value:.9g}" if short == f"{limit:.6g}" else short
