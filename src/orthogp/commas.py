"""Lists on the command line are comma-separated, in every command."""


def comma_separated(text: str | None) -> list[str]:
    """The parts without the spaces around them; none of an empty text, or of none."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
