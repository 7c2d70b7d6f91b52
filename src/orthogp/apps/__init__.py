"""What the command line does: tables, the demonstration, benchmarks, the paper's experiments."""


def comma_separated(text: str | None) -> list[str]:
    """The parts of a list on the command line, without the spaces around them."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
