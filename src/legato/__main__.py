"""`python -m legato`: the command line where no script is installed."""

from legato.cli import main

main()
