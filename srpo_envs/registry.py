"""Environments by id: `make`, `register`, `spec`, `list_envs`.

An id is ``namespace/Name-vN``; the version rises when results could change. Whatever is registered here is also known
to `gymnasium.make` (`JointSetEnv`) and to `pettingzoo.make` (`ParallelSetEnv`, `AecSetEnv`)::

    env = srpo_envs.make("ArithmeticSolverVerifierFixed-v0", num_solvers=5, level=3)      # a SetEnv
    env = gymnasium.make("srpo_envs/ArithmeticSolverVerifierFixed-v0", num_solvers=5)     # one controller
    env = pettingzoo.make("parallel", "srpo_envs/ArithmeticSolverVerifierFixed-v0")       # one agent per seat

A package adds environments without being imported: every entry point of the group ``srpo_envs.environments`` names an
id and a factory, in pyproject.toml::

    [project.entry-points."srpo_envs.environments"]
    "acme/Debate-v0" = "acme_envs:Debate"
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from srpo_envs.errors import ConfigError, RegistrationError, SrpoError, UnknownIdError, near_miss

if TYPE_CHECKING:
    from srpo_envs.core import SetEnv

NAMESPACE = "srpo_envs"
"""Namespace of the environments of this package; `make` may leave it out."""

ENTRY_POINT_GROUP = "srpo_envs.environments"
"""Entry points of this group name an id and a factory."""

_ID = re.compile(r"(?P<stem>(?P<namespace>[A-Za-z][\w-]*)/(?P<name>[A-Za-z]\w*))-v(?P<version>\d+)")
_RESERVED_ARGUMENTS = ("tasks", "roles")  # objects a factory builds itself; no JSON value can stand for them

Factory = Callable[..., "SetEnv"]


@dataclass(frozen=True, slots=True)
class Pairing:
    """A factory that joins any workflow class with any task family: their arguments together are its own.

    Example:
        ``register("me/Debate-v0", Pairing("my_package.debate:Debate", "srpo_envs.tasks.arithmetic:Arithmetic"))``
    """

    workflow: str
    """``module:Class`` of a `SetEnv` whose first argument is the task family."""
    family: str
    """``module:Class`` of a `TaskFamily`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the workflow that the pair stands for; nobody can give them."""

    def __call__(self, **kwargs: Any) -> SetEnv:
        """Return a new environment; each argument goes to whichever of the two takes it."""
        of_tasks, of_workflow = self.split(kwargs)
        env: SetEnv = _load(self.workflow)(_load(self.family)(**of_tasks), **self.fixed, **of_workflow)
        return env

    def split(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments that choose tasks, and those that say how they are worked on."""
        names = accepted_arguments(_load(self.family))
        of_tasks = {name: value for name, value in kwargs.items() if name in names}
        return of_tasks, {name: value for name, value in kwargs.items() if name not in names}

    def accepted(self) -> dict[str, inspect.Parameter]:
        """Return the arguments of both, without the fixed ones.

        Raises:
            RegistrationError: both take an argument of the same name.
        """
        of_family, of_workflow = accepted_arguments(_load(self.family)), accepted_arguments(_load(self.workflow))
        if shared := sorted(of_family.keys() & of_workflow.keys()):
            raise RegistrationError(f"{self.workflow} and {self.family} both take {shared}; rename one of them")
        return {name: item for name, item in (of_family | of_workflow).items() if name not in self.fixed}


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """One registered environment.

    Example:
        ``spec("ArithmeticSolverVerifierFixed-v0").arguments()`` has ``num_solvers``, ``level``, ``max_events`` ...
    """

    id: str
    """``namespace/Name-vN``."""
    entry_point: str | Factory
    """The factory, or ``module:attribute`` where it is found when first needed."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments the id stands for; a caller's own come on top."""
    module: str = ""
    """Module that registers the id, where it was asked for as ``module:id``; stored episodes then name it too."""

    @property
    def stem(self) -> str:
        """The id without its version."""
        return _parse_id(self.id)["stem"]

    @property
    def version(self) -> int:
        """The version as a number."""
        return int(_parse_id(self.id)["version"])

    def arguments(self) -> dict[str, inspect.Parameter]:
        """Return the keyword arguments `make` takes for this id, by name."""
        factory = self._factory()
        return factory.accepted() if isinstance(factory, Pairing) else accepted_arguments(factory)

    def make(self, **kwargs: Any) -> SetEnv:
        """Return a new environment; see `make`."""
        merged = {**copy.deepcopy(dict(self.kwargs)), **kwargs}
        self._check_arguments(merged)
        try:
            env = self._factory()(**merged)
        except SrpoError:
            raise
        except ValueError as error:  # a value the workflow or the family refuses
            raise ConfigError(f"{self.id}: {error}") from error
        env.env_id = f"{self.module}:{self.id}" if self.module else self.id
        env.env_kwargs = merged
        return env

    def _factory(self) -> Factory:
        return _load(self.entry_point) if isinstance(self.entry_point, str) else self.entry_point

    def _check_arguments(self, kwargs: Mapping[str, Any]) -> None:
        known = self.arguments()
        takes_any = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in known.values())
        for name, value in kwargs.items():
            if name not in known and not takes_any:
                raise ConfigError(f"{self.id}: no argument {name!r}{near_miss(name, known)}")
            if not _is_json(value):
                raise ConfigError(
                    f"{self.id}: argument {name!r} must be a JSON value, so that a stored episode can rebuild its "
                    f"environment; got {type(value).__name__}. Construct the class directly to pass objects"
                )


_specs: dict[str, EnvSpec] = {}


def register(env_id: str, entry_point: str | Factory, /, **kwargs: Any) -> EnvSpec:
    """Make an environment known to `make`, `gymnasium.make` and `pettingzoo.make`.

    Args:
        env_id: ``namespace/Name-vN``.
        entry_point: A callable returning a `SetEnv` (a class, a function, a `Pairing`), or ``module:attribute`` of one,
            which is imported when the environment is first made.
        kwargs: Arguments the id stands for, as JSON values.

    Returns:
        The new entry.

    Raises:
        RegistrationError: the id is malformed or taken.
    """
    _parse_id(env_id)
    if env_id in _specs:
        raise RegistrationError(f"{env_id!r} is already registered; raise its version when results could change")
    spec = EnvSpec(env_id, entry_point, kwargs)
    _specs[env_id] = spec
    _register_views(env_id)
    return spec


def make(env_id: str, /, **kwargs: Any) -> SetEnv:
    """Return a new environment by id.

    Args:
        env_id: ``namespace/Name-vN``. Without a namespace ``srpo_envs`` is meant; without a version the newest is.
            ``module:namespace/Name-vN`` imports the module first, so that it can register the id.
        kwargs: Arguments of the environment as JSON values; they are stored with every episode.

    Raises:
        UnknownIdError: no such id; the message names the nearest.
        ConfigError: an unknown argument, or a value that is not JSON.
    """
    return spec(env_id).make(**kwargs)


def spec(env_id: str) -> EnvSpec:
    """Return the entry of an id, which may leave out namespace and version, or name its module, as in `make`.

    Raises:
        UnknownIdError: no such id or module; the message names the nearest id, or the versions that exist.
    """
    module, colon, env_id = env_id.rpartition(":")
    if colon:
        _import_registering(module, env_id)
        return replace(spec(env_id), module=module)
    wanted = env_id if "/" in env_id else f"{NAMESPACE}/{env_id}"
    if wanted in _specs:
        return _specs[wanted]
    match = _ID.fullmatch(wanted)
    versions = sorted((item for item in _specs.values() if item.stem == (match["stem"] if match else wanted)), key=_age)
    if versions and match:
        existing = ", ".join(f"v{item.version}" for item in versions)
        raise UnknownIdError(f"no version {match['version']} of {match['stem']!r}; existing: {existing}")
    if versions:
        return versions[-1]
    raise UnknownIdError(f"no environment {env_id!r}{near_miss(wanted, _specs)}")


def list_envs() -> list[str]:
    """Return every registered id, sorted."""
    return sorted(_specs)


def accepted_arguments(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments a factory takes, following ``**kwargs`` of a class up to its parents.

    Args:
        factory: A class or function; `tasks` and `roles`, which are objects, are not counted.

    Returns:
        Parameters by name; one of kind VAR_KEYWORD when anything is accepted.
    """
    found: dict[str, inspect.Parameter] = {}
    for call in _constructors(factory):
        parameters = list(inspect.signature(call).parameters.values())
        rest = [item for item in parameters if item.kind is inspect.Parameter.VAR_KEYWORD]
        for item in parameters:
            if item.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
                found.setdefault(item.name, item)
        if not rest:
            break
    else:
        found |= {item.name: item for item in rest}
    return {name: item for name, item in found.items() if name not in (*_RESERVED_ARGUMENTS, "self")}


def _constructors(factory: Callable[..., Any]) -> Iterable[Callable[..., Any]]:
    """The functions that see a factory's arguments, nearest first."""
    if not inspect.isclass(factory):
        return [factory]
    return [vars(parent)["__init__"] for parent in factory.__mro__[:-1] if "__init__" in vars(parent)] or [lambda: None]


def load_plugins() -> None:
    """Register the entry points of installed packages; a bad one warns and is left out."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            register(entry.name, entry.value)
        except RegistrationError as error:
            warnings.warn(f"entry point {entry.name!r} = {entry.value!r} is left out: {error}", stacklevel=2)


def _register_views(env_id: str) -> None:
    import gymnasium
    import pettingzoo

    names = {"env_id": env_id}
    gymnasium.register(env_id, entry_point="srpo_envs.registry:make_joint", kwargs=names)
    pettingzoo.register("parallel", env_id, "srpo_envs.registry:make_parallel", kwargs=names)
    pettingzoo.register("aec", env_id, "srpo_envs.registry:make_aec", kwargs=names)


def make_joint(env_id: str, render_mode: str | None = None, **kwargs: Any) -> Any:
    """Return the Gymnasium view of an environment by id; what `gymnasium.make` calls."""
    from srpo_envs.views import JointSetEnv

    return JointSetEnv(make(env_id, **kwargs), render_mode)


def make_parallel(env_id: str, render_mode: str | None = None, **kwargs: Any) -> Any:
    """Return the PettingZoo parallel view of an environment by id; what `pettingzoo.make` calls."""
    from srpo_envs.views import ParallelSetEnv

    return ParallelSetEnv(make(env_id, **kwargs), render_mode)


def make_aec(env_id: str, render_mode: str | None = None, **kwargs: Any) -> Any:
    """Return the PettingZoo AEC view of an environment by id; what `pettingzoo.make` calls."""
    from srpo_envs.views import AecSetEnv

    return AecSetEnv(make(env_id, **kwargs), render_mode)


def _import_registering(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, something it needs is not
        raise UnknownIdError(
            f"environment {module}:{env_id}: no module {error.name!r}; it must be installed, or be in the folder the "
            "program runs in"
        ) from None


def _parse_id(env_id: str) -> re.Match[str]:
    match = _ID.fullmatch(env_id)
    if match is None:
        raise RegistrationError(f"malformed id {env_id!r}; expected namespace/Name-vN, such as 'me/Debate-v0'")
    return match


def _age(item: EnvSpec) -> int:
    return item.version


def _load(entry_point: str) -> Any:
    module, _, attribute = entry_point.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        raise RegistrationError(f"entry point {entry_point!r}: module {module!r} has no {attribute!r}") from None


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
