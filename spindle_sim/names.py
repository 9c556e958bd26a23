"""What a name may be: something that a person can read, tell from another and type."""

from collections.abc import Iterator

from spindle_sim.errors import Problem

__all__ = ["name_mistake", "name_problems"]


def name_mistake(name: str, *, part: bool = False) -> str:
    """Say what is wrong with a name; "" where nothing is.

    A `part` stands in ids such as "task/use/block": with a slash in it two ids could be one.
    """
    if not name.strip():
        return f"{name!r} is blank; give a name"
    if not name.isprintable():
        strange = next(letter for letter in name if not letter.isprintable())
        return f"{name!r:.60} has a character that can't be printed, {strange!r}; leave it out"
    if name != name.strip():
        return f"{name!r:.60} begins or ends with a blank; leave it out"
    if part and "/" in name:
        return f"{name!r:.60} has a slash, which joins names to ids; use another character"
    return ""


def name_problems(name: str, *, where: str = "", part: bool = False) -> Iterator[Problem]:
    """Give the problem of the field `name` of what `where` names, if there is one."""
    if mistake := name_mistake(name, part=part):
        message = f"{where}: name {mistake}" if where else f"name {mistake}"
        yield Problem(path="name", message=message)
