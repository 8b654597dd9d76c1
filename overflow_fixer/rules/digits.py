"""Numbers in reasons, with as many digits as the sentence needs."""


def tell_over(value: float, limit: float) -> str:
    """Six digits; nine where six would not tell the value from the limit that it is over."""
    short = f"{value:.6g}"
    return f"{value:.9g}" if short == f"{limit:.6g}" else short


def tell_beside(value: float, limit: float, places: int = 1) -> str:
    """So many decimals; more where these would not be on the side of the limit that the value is on. "nan" for NaN."""
    told = (f"{value:.{more}f}" for more in range(places, 16))
    return next((one for one in told if (float(one) < limit) == (value < limit)), f"{value}")
