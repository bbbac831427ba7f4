"""What every ShardGym record has in common: frozen, strict, JSON round trip, content hash.

A record is a pydantic dataclass that inherits `Record`. Unknown fields are refused, numbers are checked on
construction, and `digest` is a SHA-256 over the canonical JSON (sorted keys, no spaces, shortest float form) of the
fields that do not have their defaults: a field that is added, with a default, changes no digest. So a default stays
as it is as long as the `schema` does.
"""

import dataclasses
import functools
import hashlib
import json
import operator
import typing
from abc import ABCMeta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from shardgym.errors import InputError, closest, short_repr
from shardgym.files import read_text

#: Configuration of every record's dataclass.
CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)

#: What pydantic calls the error of a field that a record does not have.
_UNKNOWN_FIELD = "unexpected_keyword_argument"


def _to_int(value: Any) -> int:
    """Accept Python and numpy integers, nothing that would have to be rounded or parsed."""
    if isinstance(value, bool):
        raise ValueError("expected an integer, not a boolean")
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"expected an integer, got {short_repr(value)}") from None


def _without_negative_zero(value: float) -> float:
    """Turn -0.0 into 0.0, which is equal and would be written differently."""
    return value + 0.0


_LABEL = r"^[A-Za-z0-9_.:+,=@/()-]([A-Za-z0-9_.:+,=@/() -]*[A-Za-z0-9_.:+,=@/()-])?$"

#: Types of fields: a finite number, an integer (Python's or NumPy's), a name without blanks around it, a SHA-256,
#: and a name that tables show, in letters that mean nothing in Markdown and HTML.
Number = Annotated[float, AfterValidator(_without_negative_zero)]
Whole = Annotated[int, BeforeValidator(_to_int)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\s\p{C}]([^\p{C}]*[^\s\p{C}])?$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Label = Annotated[str, Field(max_length=200, pattern=_LABEL)]

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(data: Any) -> str:
    """Return the one JSON text of `data` that hashes are taken over."""
    return _CANONICAL.encode(data)


def sha256(text: str) -> str:
    """Return the SHA-256 of `text` as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


class RecordType(ABCMeta):
    """Makes the constructors of records say in one line what is wrong, as `from_json` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a record; raises `InputError`."""
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {_explain(error, cls)}") from None


class Record(metaclass=RecordType):
    """Mixin of all records: JSON in, JSON out, and an identity."""

    not_identity: ClassVar[frozenset[str]] = frozenset()  #: fields that are for display and not part of the identity

    @classmethod
    def unchecked(cls, **fields: Any) -> Self:
        """Make a record of fields that are known to be valid, where checking them would take longer than all the rest.

        Args:
            **fields: as the constructor takes them by name, in the types that it keeps them in.
        """
        record = object.__new__(cls)
        record.__dict__.update(_defaults_of(cls), **fields)
        return record

    @classmethod
    def from_dict(cls, data: Any, source: str = "") -> Self:
        """Build a record from parsed JSON.

        Raises:
            InputError: a field is missing, unknown or out of range; `source` is named in the message.
        """
        try:
            record: Self = _adapter_of(cls).validate_python(data)
            return record
        except ValidationError as error:
            raise InputError(f"{source or cls.__name__}: {_explain(error, cls)}") from None

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "") -> Self:
        """Build a record from JSON text.

        Raises:
            InputError: the text is not JSON, or a field is missing, unknown or out of range.
        """
        return cls.from_dict(parse_json(text, source or cls.__name__), source)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a record from a JSON file; raises `InputError`."""
        return cls.from_json(read_text(path), source=str(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-ready lists and dictionaries."""
        data: dict[str, Any] = _adapter_of(type(self)).dump_python(self, mode="json")
        return data

    def to_json(self, indent: int | None = None) -> str:
        """Return the record as JSON text; canonical unless `indent`, a number of blanks, is given."""
        data = self.to_dict()
        return canonical_json(data) if indent is None else json.dumps(data, indent=indent, allow_nan=False)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of `identity()`."""
        return sha256(canonical_json(self.identity()))

    def identity(self, leave_out: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return the fields that make the record what it is, as JSON-ready lists and dictionaries.

        Fields in `not_identity` are left out, and those that have their defaults, in records inside of this one, too.
        What says which kind of record it is stays.

        Args:
            leave_out: more fields that are not wanted.
        """
        unwanted = set(self.not_identity | leave_out)
        data = _adapter_of(type(self)).dump_python(self, mode="json", exclude=unwanted)
        kept: dict[str, Any] = _without_defaults(self, data)
        return kept


@functools.cache  # building an adapter takes milliseconds
def _adapter_of(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


@functools.cache
def _defaults_of(cls: type[Any]) -> dict[str, Any]:
    fields = dataclasses.fields(cls)
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


@functools.cache
def _json_defaults_of(cls: type[Any]) -> dict[str, Any]:
    """Return defaults as JSON has them, without those of fields that can have no other value: `schema`, `kind`."""
    hints = typing.get_type_hints(cls)
    fields = {
        name: field
        for name, field in cls.__pydantic_fields__.items()
        if not (typing.get_origin(hints[name]) is Literal and len(typing.get_args(hints[name])) == 1)
    }
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True, validated_data={}))
        for name, field in fields.items()
        if not field.is_required()
    }


def _without_defaults(value: Any, data: Any) -> Any:
    """Return what a record, or several of them, became as JSON without the fields that have their defaults."""
    if isinstance(value, tuple | list):
        return [_without_defaults(*pair) for pair in zip(value, data, strict=True)]
    if isinstance(value, dict):
        pairs = zip(value.values(), data.items(), strict=True)
        return {name: _without_defaults(part, of_part) for part, (name, of_part) in pairs}
    if not isinstance(value, Record):
        return data
    defaults = _json_defaults_of(type(value))
    return {
        name: _without_defaults(getattr(value, name), part)
        for name, part in data.items()
        if name not in defaults or part != defaults[name]
    }


def _explain(error: ValidationError, record: type[Any]) -> str:
    """Return pydantic's first error in one line: the field, what was expected, what was given."""
    # The schema of another record, and a field that may be a missing one, misspelt, explain the rest.
    errors = error.errors(include_url=False)
    first, *others = sorted(errors, key=lambda e: (e["loc"][-1:] != ("schema",), e["type"] != _UNKNOWN_FIELD))
    names = [field.name for field in dataclasses.fields(record)]  # of arguments that were passed by position
    location = [names[part] if isinstance(part, int) and not i else part for i, part in enumerate(first["loc"])]
    where = ".".join(str(part) for part in location)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == _UNKNOWN_FIELD:
        message = "there is no such field" + (f": {closest(where, names)}" if where == str(first["loc"][0]) else "")
    more = f" (and {len(others)} more problem{'s' * (len(others) > 1)})" if others else ""
    # The beginning of a whole record says nothing, and some messages say what was given.
    is_whole = not where and first["type"] == "value_error"
    is_said = is_whole or first["type"] in ("missing", "missing_argument", _UNKNOWN_FIELD) or ", got " in message
    given = "" if is_said else f", got {short_repr(first['input'])}"
    return f"{where}{': ' if where else ''}{message}{given}{more}".replace("\n", " ")


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON; raises `InputError` with line and column."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid JSON ({error}); the file may be truncated") from None
