"""`python -m tinyproto` is the command `tinyproto`."""

from tinyproto.cli.main import main

if __name__ == "__main__":
    main()
