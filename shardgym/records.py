"""What every ShardGym record has in common: frozen, strict, JSON round trip, content hash.

A record is a pydantic dataclass that inherits `Record`. Unknown fields are refused, numbers are checked on
construction, and `digest` is a SHA-256 over the canonical JSON (sorted keys, no spaces, shortest float form).
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
import os
import re
import reprlib
from abc import ABCMeta
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from shardgym.errors import InputError
from shardgym.field_hints import suggestion

CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)


_SCHEMA = re.compile(r"shardgym\.\w{1,40}/\d{1,9}")

#: Further places that the one line about a wrong record names.
_MOST_PLACES = 8

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlong, _SHORT.maxother = 3, 60, 60, 60


def short_repr(value: Any) -> str:
    """Return the beginning of a value's `repr`, at most 60 characters, however large and nested the value is."""
    return _SHORT.repr(value)[:60]


def _whole(value: Any) -> int:
    """Accept Python and numpy integers, nothing that would have to be rounded or parsed."""
    if isinstance(value, bool):
        raise ValueError("expected a whole number, not a boolean")
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"expected a whole number, got {short_repr(value)}") from None


def _plain_zero(value: float) -> float:
    """Turn -0.0 into 0.0, which is equal and would be written differently."""
    return value + 0.0


Number = Annotated[float, AfterValidator(_plain_zero)]
Whole = Annotated[int, BeforeValidator(_whole)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def canonical_json(data: Any) -> str:
    """Return the one JSON text of `data` that hashes are taken over."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256(text: str) -> str:
    """Return the SHA-256 of `text` as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def explain(error: ValidationError, record: type[Any] | None = None) -> str:
    """Turn pydantic's report on a `record` into one line: where, what was given, what was expected.

    An unknown field comes before a missing one: it is what was misspelt.
    """
    errors = _own(error.errors(include_url=False))
    first, *rest = sorted(errors, key=lambda e: e["type"] != "unexpected_keyword_argument")
    where = ".".join(_named(first["loc"], record))
    message, value = first["msg"].removeprefix("Value error, "), short_repr(first["input"])
    silent = first["type"] == "missing" or (first["type"] == "value_error" and not where)
    given = "" if silent or message.endswith(f"got {value}") else f" (given: {value})"
    more = f"; {_others(rest, record)}" if rest else ""
    unknown = first["type"] == "unexpected_keyword_argument"
    hint = suggestion(record, first["loc"]) if unknown and record is not None else ""
    return f"{where}{': ' if where else ''}{message}{given}{hint}{more}".replace("\n", " ")


def _own(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out containers of what is wrong itself: a list "has too few items" as wrong items are not counted."""
    containers = {error["loc"][:end] for error in errors for end in range(1, len(error["loc"]))}
    return [error for error in errors if error["loc"] not in containers]


def _others(errors: list[ErrorDetails], record: type[Any] | None) -> str:
    """Say how many more errors there are and where; an error of a constructor's arguments as a whole has no place."""
    places = list(dict.fromkeys(".".join(_named(error["loc"], record)) for error in errors))
    shown_places = [place for place in places if place][:_MOST_PLACES]
    rest = ", ..." if len(places) > _MOST_PLACES else ""
    return f"{len(errors)} more{': ' if shown_places else ''}{', '.join(shown_places)}{rest}"


def _named(loc: tuple[str | int, ...], record: type[Any] | None) -> list[str]:
    """Return where something is wrong; an argument that was given by its position gets the name of its field."""
    names = list(getattr(record, "__dataclass_fields__", ()))
    first, *rest = [*loc] or [""]
    positional = isinstance(first, int) and first < len(names)
    return [str(part) for part in (names[int(first)] if positional else first, *rest) if part != ""]


class RecordType(ABCMeta):
    """Makes the constructors of records say in one line what is wrong, as `from_json` does."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a record; raises `InputError`."""
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {explain(error, cls)}") from None


class Record(metaclass=RecordType):
    """Mixin of all records: JSON in, JSON out, and an identity."""

    #: Fields that are for display and not part of the identity.
    not_identity: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def _adapter(cls) -> TypeAdapter[Self]:
        adapter: TypeAdapter[Self] = _adapter_of(cls)
        return adapter

    @classmethod
    def from_dict(cls, data: Any, source: str = "") -> Self:
        """Build a record from parsed JSON.

        Raises:
            InputError: a field is missing, unknown or out of range; `source` is named in the message.
        """
        try:
            return cls._adapter().validate_python(data)
        except ValidationError as error:
            why = _other_kind(cls, data) or explain(error, cls)
            raise InputError(f"{source or cls.__name__}: {why}") from None

    @classmethod
    def from_json(cls, text: str | bytes, source: str = "") -> Self:
        """Build a record from JSON text.

        Raises:
            InputError: no text, or the text is not JSON, or a field is missing, unknown or out of range.
        """
        if not isinstance(text, str | bytes | bytearray):
            where = source or cls.__name__
            raise InputError(f"{where}: expected JSON text, got {short_repr(text)}; from_dict takes parsed JSON")
        return cls.from_dict(parse_json(text, source or cls.__name__), source)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a record from a JSON file; raises `InputError` naming the file."""
        return cls.from_json(read_text(path), source=str(path))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-ready lists and dictionaries."""
        data: dict[str, Any] = self._adapter().dump_python(self, mode="json")
        return data

    def to_json(self, indent: int | None = None) -> str:
        """Return the record as JSON text; canonical unless `indent`, a number of blanks, is given."""
        if indent is not None and not isinstance(indent, int):
            raise InputError(f"indent: expected a number of blanks, got {short_repr(indent)}")
        data = self.to_dict()
        return canonical_json(data) if indent is None else json.dumps(data, indent=indent, allow_nan=False)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON without the fields in `not_identity`."""
        return sha256(canonical_json({k: v for k, v in self.to_dict().items() if k not in self.not_identity}))


@functools.cache
def _adapter_of(cls: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _other_kind(cls: type[Any], data: Any) -> str:
    """Say that the data are a record of another kind, if they say so themselves; "" otherwise."""
    given = data.get("schema") if isinstance(data, dict) else None
    expected = getattr(cls, "schema", None)
    if not isinstance(given, str) or not isinstance(expected, str) or not _SCHEMA.fullmatch(given):
        return ""
    same = given.partition("/")[0] == expected.partition("/")[0]
    return "" if same else f"this is a {given}, expected {expected}"


class _TwiceError(ValueError):
    """A key that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _TwiceError(f"key {short_repr(twice)} occurs twice in one object")
    return data


def _no_constant(token: str) -> Any:
    raise ValueError(f"{token} is not a number that JSON allows")


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON, refusing NaN, infinities and keys that occur twice; raises `InputError` with line and column."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_object)
    except _TwiceError as error:
        raise InputError(f"{source}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid JSON ({error}); the file may be truncated") from None


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text file, with or without a byte-order mark; raises `InputError` when that fails."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a file, got {short_repr(path)}")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is not a UTF-8 text file") from None
