"""`python -m mxc` is the `mxc` command."""

from mxc.compiler.cli import main

if __name__ == "__main__":
    main()
