"""Evaluates a template's intrinsic functions and conditions.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/intrinsic-function-reference.html (2026-11).
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.cloudformation.errors import TemplateError

# Placeholders in Fn::Sub: ${name}, ${resource.attribute}, and ${!text}, the escaped form of ${text}.
PLACEHOLDER = re.compile(r"\$\{([^!}][^}]*)\}")
MARK = re.compile(r"\$\{(!?)([^}]+)\}")
DYNAMIC = re.compile(r"\{\{resolve:(ssm|ssm-secure|secretsmanager):([^}]+)\}\}")
NO_VALUE = object()
JOIN_SHAPE = (
    "every Fn::Join object requires two parameters, (1) a string delimiter and (2) a list of strings to be joined or a "
    "function that returns a list of strings (such as Fn::GetAZs) to be joined."
)


class Unknown:
    """A value known only after the deployment, such as a new resource's ID. `what` identifies it."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and other.what == self.what

    def __hash__(self) -> int:
        return hash(self.what)

    def __str__(self) -> str:
        return "{{changeSet:KNOWN_AFTER_APPLY}}"

    __repr__ = __str__


def has_unknown(value: Any) -> bool:
    """Return True if a value contains an Unknown."""
    if isinstance(value, Mapping):
        return any(map(has_unknown, value.values()))
    return any(map(has_unknown, value)) if isinstance(value, list) else isinstance(value, Unknown)


class Resolver:
    """Evaluates a template's values for a stack.

    Args:
        parameters: Values of parameters and pseudo parameters, by name.
        ref: Returns a resource's Ref value, by logical ID.
        get_att: Returns a resource's attribute, by logical ID and dotted name.
        import_value: Returns an export's value.
        dynamic: Returns a dynamic reference's value, by service and the rest of the reference.
        zones: Returns a region's Availability Zones.
        stack_output: Returns another stack's output, by stack name, output name and region.
        note: Receives the reasons why a value is unknown, apart from references to resources.
    """

    def __init__(
        self,
        template: Mapping[str, Any],
        parameters: Mapping[str, Any],
        *,
        ref: Callable[[str], Any],
        get_att: Callable[[str, str], Any],
        import_value: Callable[[str], Any],
        dynamic: Callable[[str, str], str],
        zones: Callable[[str], list[str]],
        stack_output: Callable[[str, str, str], Any],
        note: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._template = template
        self._parameters = parameters
        self._ref = ref
        self._get_att = get_att
        self._import_value = import_value
        self._dynamic = dynamic
        self._zones = zones
        self._stack_output = stack_output
        self._note = note
        self._conditions: dict[str, bool] = {}

    def condition(self, name: str, where: str = "") -> bool:
        """Return the value of a named condition. `where` is appended to the message for an unknown condition."""
        if name not in self._conditions:
            defined = self._template.get("Conditions", {})
            if name not in defined:
                raise TemplateError(f"Template error: unresolved condition dependency {name}{where}")
            self._conditions[name] = bool(self._truth(defined[name]))
        return self._conditions[name]

    def includes(self, item: Mapping[str, Any]) -> bool:
        """Return True if a resource or output has no Condition or its Condition is true."""
        return "Condition" not in item or self.condition(item["Condition"])

    def resolve(self, value: Any) -> Any:
        """Return a value with its intrinsic functions evaluated. AWS::NoValue removes the key or item."""
        resolved = self._value(value)
        return None if resolved is NO_VALUE else self._with_dynamic(resolved)

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            if len(value) == 1:
                name, argument = next(iter(value.items()))
                if name == "Ref":
                    return self._reference(argument)
                if isinstance(name, str) and name.startswith("Fn::"):
                    return self._function(name, argument)
            items = {key: self._value(item) for key, item in value.items()}
            return {key: item for key, item in items.items() if item is not NO_VALUE}
        if isinstance(value, list):
            return [item for item in map(self._value, value) if item is not NO_VALUE]
        return value

    def _with_dynamic(self, value: Any) -> Any:
        """Resolve dynamic references after all functions, since function results may contain them."""
        if isinstance(value, dict):
            return {key: self._with_dynamic(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._with_dynamic(item) for item in value]
        if isinstance(value, str) and "{{resolve:" in value:
            return DYNAMIC.sub(lambda match: self._dynamic(match.group(1), match.group(2)), value)
        return value

    def _reference(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in self._parameters:
            return self._parameters[name]
        return self._ref(name)

    def _function(self, name: str, argument: Any) -> Any:
        function = getattr(self, "_fn_" + name.removeprefix("Fn::").lower(), None)
        if function is None:
            raise TemplateError(f"Template error: {name}: function is not emulated")
        try:
            return function(argument)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            shown = json.dumps(argument, default=str)[:200]
            raise TemplateError(f"Template error: {name}: invalid argument {shown}: {error!r}") from error

    def _truth(self, value: Any) -> bool:
        if isinstance(value, dict) and len(value) == 1:
            name, argument = next(iter(value.items()))
            if name == "Condition":
                return self.condition(argument)
            if name == "Fn::And":
                return all(self._truth(item) for item in argument)
            if name == "Fn::Or":
                return any(self._truth(item) for item in argument)
            if name == "Fn::Not":
                return not self._truth(argument[0])
            if name == "Fn::Equals":
                left, right = self._value(argument)
                return text_of(left) == text_of(right)
        if isinstance(value, bool):
            return value
        raise TemplateError(f"Template error: not a condition: {json.dumps(value, default=str)}")

    def assertions_failed(self) -> list[str]:
        """Return the descriptions of failed assertions in Rules."""
        failed = []
        for name, rule in self._template.get("Rules", {}).items():
            if "RuleCondition" in rule and not self._assertion(rule["RuleCondition"]):
                continue
            failed += [
                f"{name}: {item.get('AssertDescription', 'assertion failed')}"
                for item in rule.get("Assertions", [])
                if not self._assertion(item["Assert"])
            ]
        return failed

    def _assertion(self, value: Any) -> bool:
        if isinstance(value, dict) and len(value) == 1:
            name, argument = next(iter(value.items()))
            if name == "Fn::Contains":
                return self._value(argument[1]) in self._value(argument[0])
            if name == "Fn::EachMemberIn":
                return all(item in self._value(argument[1]) for item in self._value(argument[0]))
            if name == "Fn::Not":
                return not self._assertion(argument[0])
            if name in ("Fn::And", "Fn::Or"):
                results = [self._assertion(item) for item in argument]
                return all(results) if name == "Fn::And" else any(results)
        return self._truth(value)

    def _fn_getatt(self, argument: Any) -> Any:
        logical_id, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        return self._get_att(logical_id, self._value(attribute))

    def _fn_sub(self, argument: Any) -> Any:
        text, variables = (argument, {}) if isinstance(argument, str) else argument
        local = {name: self._value(value) for name, value in variables.items()}
        unknown: list[str] = []

        def value(match: re.Match[str]) -> str:
            if match.group(1):
                return f"${{{match.group(2)}}}"
            name = match.group(2).strip()
            resolve = self._fn_getatt if "." in name else self._reference
            found = local[name] if name in local else resolve(name)
            if isinstance(found, Unknown):
                unknown.append(found.what)
            return text_of(found)

        done = MARK.sub(value, text)
        return Unknown(f"{done} {unknown}") if unknown else done

    def _fn_join(self, argument: Any) -> Any:
        delimiter, items = argument
        parts = self._value(items)
        if isinstance(parts, Unknown):
            self._note(f"Template error: {JOIN_SHAPE}")
            return parts
        joined = delimiter.join(text_of(part) for part in parts)
        unknown = [part.what for part in parts if isinstance(part, Unknown)]
        return Unknown(f"{joined} {unknown}") if unknown else joined

    def _fn_select(self, argument: Any) -> Any:
        index, items = self._value(argument[0]), self._value(argument[1])
        if isinstance(items, Unknown):
            return Unknown(f"{items.what}[{index}]")
        if not isinstance(items, list) or not str(index).isdecimal() or int(index) >= len(items):
            words = "requires a list argument with two elements: an integer index and a list"
            raise TemplateError(f"Template error: Fn::Select {words}")
        return items[int(index)]

    def _fn_split(self, argument: Any) -> Any:
        text = self._value(argument[1])
        return text if isinstance(text, Unknown) else text.split(argument[0])

    def _fn_findinmap(self, argument: Any) -> Any:
        default = argument[3]["DefaultValue"] if len(argument) > 3 else None
        name, first, second = (self._value(item) for item in argument[:3])
        try:
            return self._value(self._template["Mappings"][name][first][second])
        except KeyError:
            if default is not None:
                return self._value(default)
            raise TemplateError(f"Template error: Unable to get mapping for {name}::{first}::{second}") from None

    def _fn_if(self, argument: Any) -> Any:
        return self._value(argument[1] if self.condition(argument[0], " in Fn::If") else argument[2])

    def _fn_base64(self, argument: Any) -> Any:
        text = self._value(argument)
        return text if isinstance(text, Unknown) else base64.b64encode(text.encode()).decode()

    def _fn_cidr(self, argument: Any) -> Any:
        block, count, bits = [*self._value(argument), 8][:3]
        if isinstance(block, Unknown):
            return [Unknown(f"{block.what}/{i}") for i in range(int(count))]
        network = ipaddress.ip_network(block)
        subnets = network.subnets(new_prefix=network.max_prefixlen - int(bits))
        blocks = [str(subnet) for subnet, _ in zip(subnets, range(int(count)), strict=False)]
        if len(blocks) < int(count):
            raise ValueError(f"{block} contains {len(blocks)} blocks of {bits} bits, expected {count}")
        return blocks

    def _fn_getazs(self, argument: Any) -> Any:
        return self._zones(self._value(argument) or self._parameters["AWS::Region"])

    def _fn_importvalue(self, argument: Any) -> Any:
        return self._import_value(self._value(argument))

    def _fn_length(self, argument: Any) -> Any:
        items = self._value(argument)
        if isinstance(items, Unknown):
            return items
        if not isinstance(items, list):
            raise TypeError("not a list")
        return len(items)

    def _fn_tojsonstring(self, argument: Any) -> Any:
        value = self._value(argument)
        written = json.dumps(value, separators=(",", ":"), default=lambda unknown: unknown.what)
        return Unknown(written) if has_unknown(value) else written

    def _fn_transform(self, argument: Any) -> Any:
        raise TemplateError("Template error: Fn::Transform: macros are not emulated; expand the template first")

    def _fn_getstackoutput(self, argument: Any) -> Any:
        given = self._value(argument)
        if given.get("RoleArn"):
            raise TemplateError(
                "Template error: Fn::GetStackOutput: RoleArn is not emulated, since the embedded cloud has one account"
            )
        region = given.get("Region") or self._parameters["AWS::Region"]
        return self._stack_output(given["StackName"], given["OutputName"], region)


MakeResolver = Callable[[Callable[[str], Any], Callable[[str, str], Any]], Resolver]
"""Returns a Resolver with the given `ref` and `get_att`."""


def text_of(value: Any) -> str:
    """Return a scalar as CloudFormation writes it: truth values in lower case."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
