"""`python -m falconet` is `falconet`."""

from falconet.cli.main import main

if __name__ == "__main__":
    main()
