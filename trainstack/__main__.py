"""Entry point of `python -m trainstack`."""

from trainstack.commands import main

if __name__ == "__main__":
    main()
