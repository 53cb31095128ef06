"""The package that everything here needs, with a message where it is missing."""

from weft.errors import WeftError

try:
    import transformers  # noqa: F401
except ImportError as cause:
    raise WeftError(
        "weft.interop.hf needs Transformers, 5.17 or later: pip install transformers accelerate"
    ) from cause
