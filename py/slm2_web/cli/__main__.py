"""`python -m slm2_web.cli`: the same as `slm2-web`."""

from slm2_web.cli.app import main

if __name__ == "__main__":
    main()
