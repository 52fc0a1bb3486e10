"""`python -m echo_env.cli`."""

from echo_env.cli import main

main()
