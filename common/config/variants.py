"""Groups of fields whose class depends on a name: the optimizer's on its rule, the schedule's on its kind.

A class has the fields that its rule or kind reads. The class of your own functions has all of them. TensorFlow-free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from common.config import plugins
from common.errors import UserError, near


def variant_name(name: str) -> Any:
    """Declares the field with the name of a class, which stands for the class."""
    return dataclasses.field(default=name, init=False)


class Variant:
    """Base of the classes of such a group."""

    # The field with the name: "optimizer.name".
    path: ClassVar[str]
    # Whether the rule or schedule comes from outside this project.
    is_plugin: ClassVar[bool] = False

    @property
    def variant(self) -> str:
        """The name that stands for the class."""
        return getattr(self, self.path.partition(".")[2])

    def refused(self, field: str, message: str) -> UserError:
        """Returns the error for the value of a field."""
        return UserError(f"config.{self.path.partition('.')[0]}.{field}={getattr(self, field)!r}: {message}")


V = TypeVar("V", bound=Variant)


class Variants(Generic[V]):
    """The classes of a group.

    Attributes:
      base: their base, with the fields that all of them have.
      general: the class of your own functions.
      classes: {name: class} of the others, in the order of their module.
    """

    def __init__(self, module: ModuleType, base: type[V], general: type[V]):
        self.base, self.general = base, general
        self.group, _, self._field = base.path.partition(".")
        members = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, base)]
        by_name = {getattr(one, self._field, ""): one for one in members}
        self.classes: dict[str, type[V]] = {name: one for name, one in by_name.items() if name}

    def of(self, name: str) -> type[V]:
        """Returns the class that `name` stands for. Raises UserError if none has this name."""
        if plugins.is_plugin(name):
            return self.general
        if name not in self.classes:
            message = f"unknown{near(name, self.classes)}; known: {', '.join(self.classes)}"
            raise UserError(f"config.{self.base.path}={name!r}: {message}")
        return self.classes[name]

    def make(self, name: str, **values: Any) -> V:
        """Returns the group called `name`: its defaults, but for `values`.

        Raises UserError if no class has this name, or it does not have such a field.
        """
        cls = self.of(name)
        for field, value in values.items():
            if message := self.refusal(cls, name, field):
                raise UserError(f"config.{self.group}.{field}={value}: {message}")
        return cls(**values | ({self._field: name} if cls is self.general else {}))

    def renamed(self, group: V, name: str) -> V:
        """Returns the group under another name, which alone is enough.

        A field that both classes have stays. But it gets the new class's default where that differs from the usual one
        (`general`'s), unless it is an epsilon above 0.
        """
        if name == group.variant:
            return group
        cls, usual = self.of(name), self.general()
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        values = {}
        for field in (f.name for f in dataclasses.fields(group) if f.init and f.name in defaults):  # type: ignore[arg-type]
            value = getattr(group, field)
            if defaults[field] == getattr(usual, field) or (field == "epsilon" and value > 0):
                values[field] = value
        return self.make(name, **{field: value for field, value in values.items() if field != self._field})

    def own_fields(self, cls: type[V]) -> tuple[str, ...]:
        """Returns the names of the fields that a class has besides those of every class."""
        shared = {field.name for field in dataclasses.fields(self.base)}  # type: ignore[arg-type]
        return tuple(f.name for f in dataclasses.fields(cls) if f.name not in shared)  # type: ignore[arg-type]

    def refusal(self, cls: type[V], name: str, field: str) -> str:
        """Returns why the class called `name` refuses a field of other classes; "" if it or none has the field."""
        fields = [one.name for one in dataclasses.fields(cls)]  # type: ignore[arg-type]
        readers = [other for other, one in self.classes.items() if field in self.own_fields(one)]
        if field in fields or not readers:
            return ""
        has = (*self.own_fields(cls), *(f.name for f in dataclasses.fields(self.base)))  # type: ignore[arg-type]
        verb = "do" if len(readers) > 1 else "does"
        return f"{name} does not read it, {', '.join(readers)} {verb}; {name} has {', '.join(has)}"

    def of_saved(self, values: Mapping[str, Any]) -> tuple[type[V], dict[str, Any]]:
        """Returns the class of a saved group and its values, without the other classes' fields of earlier versions.

        A name that no class has is kept: whoever uses a trained network does not need its optimizer.
        """
        name = values.get(self._field)
        cls = self.classes.get(name, self.general) if isinstance(name, str) else self.general
        return cls, {field: value for field, value in values.items() if not self.refusal(cls, name, field)}

    def left_out(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values that `of_saved` leaves out, and that are not the usual ones."""
        fields, usual = self.of_saved(values)[1], self.general()
        return {n: value for n, value in values.items() if n not in fields and value != getattr(usual, n)}

    def every_field(self, group: V) -> V:
        """Returns the values together with the usual ones of the other classes' fields.

        Earlier versions had one class with all fields; digests and overrides in logs keep that form.
        """
        return self.general(**{field.name: getattr(group, field.name) for field in dataclasses.fields(group)})  # type: ignore[arg-type]
