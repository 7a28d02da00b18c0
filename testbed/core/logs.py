"""What is done, and how long it took, by `logging`: ``-v`` shows steps, ``-vv`` also details."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["logger_of", "timed"]


def logger_of(name: str) -> logging.Logger:
    """Return the logger of a module, `logging.getLogger`, of Python's own class.

    Importing Mininet makes `logging.getLogger` return loggers of Mininet's class (mininet/log.py),
    which begin with a level and a handler of their own: what they say depended on which module
    was imported first.
    """
    others = logging.getLoggerClass()
    logging.setLoggerClass(logging.Logger)
    try:
        return logging.getLogger(name)
    finally:
        logging.setLoggerClass(others)


@contextmanager
def timed(logger: logging.Logger, level: int, text: str, *arguments: object) -> Iterator[None]:
    """Log what the block does when it is done, and how long it took; also where it fails.

    :param text: What it does, with placeholders of `%` formatting.
    :param arguments: The placeholders' values.
    """
    started, how = time.monotonic(), "failed after "
    try:
        yield
        how = ""
    finally:
        seconds = time.monotonic() - started
        logger.log(level, f"{text}: %s%.1f ms", *arguments, how, seconds * 1e3)
