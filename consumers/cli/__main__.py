"""`python -m postroom.consumers.cli`: the command, where the script `postroom` is not on the PATH."""

from . import main

main()
