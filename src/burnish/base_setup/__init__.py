"""Loading the base model and preparing it for its roles."""

from burnish.base_setup.base_setup import BaseSetup
from burnish.base_setup.embedded import EMBEDDED_NAME

__all__ = ["EMBEDDED_NAME", "BaseSetup"]
