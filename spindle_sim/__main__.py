"""`python -m spindle_sim` is the command `spindle`."""

from spindle_sim.cli import main

if __name__ == "__main__":
    main()
