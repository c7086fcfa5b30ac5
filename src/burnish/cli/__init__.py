"""The command line: `burnish.cli:main` runs it."""

from burnish.cli.commands import main
