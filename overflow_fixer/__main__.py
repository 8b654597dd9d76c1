"""`fix-fp16` and `python -m overflow_fixer`."""

from overflow_fixer.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
