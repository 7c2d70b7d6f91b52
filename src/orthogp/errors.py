"""One exception family: every refusal of orthogp is an `OrthogpError`, which is a `ValueError`."""


class OrthogpError(ValueError):
    """Something orthogp refuses or cannot finish, said in one sentence."""


class DataError(OrthogpError):
    """The data passed in cannot be used as they are."""


class ConfigurationError(OrthogpError):
    """The options passed in contradict each other or the model."""


class NumericalError(OrthogpError):
    """A computation could not be carried through, even after every recovery."""


class FileError(OrthogpError):
    """A file is damaged, of another kind, or cannot be written."""


class TeamError(OrthogpError):
    """Processes that train together have lost each other."""
