"""Inclusion and intersection of text patterns. `*` matches any text and `?` matches one character.

A variable such as `${aws:userid}`, `${Bucket}` or `{{resolve:ssm:name}}` is unknown text: only `*` and the same
variable cover it.
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import cache

ANY = "*"
_TOKEN = re.compile(r"\$\{[^}]*\}|\{\{[^}]*\}\}|.", re.DOTALL)


@cache
def _tokens(pattern: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(pattern))


@cache
def pattern_covers(wide: str, narrow: str) -> bool:
    """Return True if `wide` matches every text that `narrow` matches."""
    if wide in (narrow, ANY):
        return True
    pattern = _tokens(wide)
    # The positions in `wide` that are reachable after matching the tokens of `narrow` up to this point.
    positions = _skip_stars(pattern, {0})
    for token in _tokens(narrow):
        if token == ANY:
            # Only a star matches any text.
            positions = {position for position in positions if position < len(pattern) and pattern[position] == ANY}
        else:
            matching = (ANY, token) if len(token) > 1 else (ANY, "?", token)
            positions = {
                position if pattern[position] == ANY else position + 1
                for position in positions
                if position < len(pattern) and pattern[position] in matching
            }
        positions = _skip_stars(pattern, positions)
        if not positions:
            return False
    return len(pattern) in positions


@cache
def are_disjoint(one: str, other: str) -> bool:
    """Return True if no text matches both patterns, and False if a pattern contains a variable."""
    first, second = _tokens(one), _tokens(other)
    if any(len(token) > 1 for token in (*first, *second)):
        return False
    reached, todo = set(), [(0, 0)]
    while todo:
        place = todo.pop()
        if place in reached:
            continue
        reached.add(place)
        left, right = place
        at_left, at_right = first[left : left + 1], second[right : right + 1]
        if at_left == (ANY,):
            todo += [(left + 1, right), *([(left, right + 1)] if at_right else [])]
        if at_right == (ANY,):
            todo += [(left, right + 1), *([(left + 1, right)] if at_left else [])]
        is_equal = at_left == at_right or "?" in (*at_left, *at_right)
        if at_left and at_right and is_equal and ANY not in (*at_left, *at_right):
            todo.append((left + 1, right + 1))
    return (len(first), len(second)) not in reached


def _skip_stars(pattern: tuple[str, ...], positions: Set[int]) -> set[int]:
    found = set(positions)
    for position in positions:
        while position < len(pattern) and pattern[position] == ANY:
            position += 1
            found.add(position)
    return found
