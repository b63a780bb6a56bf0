"""`python -m kvchat`."""

from kvchat.cli.main import main

main()
