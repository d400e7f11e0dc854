"""`python -m legato`, and what the installed script calls."""

from legato.interrupts import CTRL_C


def main() -> None:
    CTRL_C.install()  # before the imports, which take a moment
    try:
        from legato.cli import main as run

        run()
    except KeyboardInterrupt:
        CTRL_C.end()


if __name__ == "__main__":
    main()
