"""What a config key is, marked on the field itself: `seed: Annotated[int, FIXED] = 0`."""

from __future__ import annotations

from enum import Enum, auto

from pydantic import BaseModel


class Key(Enum):
    """What the rest of burnish needs to know about a key."""

    FIXED = auto()
    """Makes the run this run: it cannot change when the run is resumed. Any other may, and the change is reported."""
    BASE = auto()
    """Makes the base model and the shape of its adapters, which all stages of a pipeline share."""
    DATA = auto()
    """Names data: a file, a data set or bundled texts. Data is compared by its fingerprint, so that it may be moved."""
    PATH = auto()
    """Names something on disk, if something of that name exists."""
    PLACE = auto()
    """Where the run is; not a setting of it."""
    MEASURED = auto()
    """Held-out measurements depend on it: measured with another value, they cannot be compared."""
    VERDICT = auto()
    """Concerns the verdict alone, which can be made again with another value."""
    RUN = auto()
    """Names another run's folder, which may have been moved."""


FIXED, BASE, DATA, PATH, PLACE, MEASURED, VERDICT, RUN = Key


def marked(config: type[BaseModel], *keys: Key) -> list[str]:
    """The fields of a config that carry one of these marks, in their order."""
    return [name for name, field in config.model_fields.items() if any(key in field.metadata for key in keys)]
