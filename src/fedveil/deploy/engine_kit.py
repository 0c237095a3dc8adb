"""The engine's files for a party, written by its own fedveil, and the engine's process.

NVIDIA FLARE 2.9.0 runs without jobs, Flower 1.41 without apps. The hub sends certificates, never
files that an engine would run or obey. At a site nobody's commands are allowed, no class may be
loaded for a job, nothing can launch one, and no logs are streamed.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil.deploy import certificates
from fedveil.deploy.agreement import Agreement
from fedveil.deploy.homes import HubHome, SiteHome, keep_secret

_log = logging.getLogger(__name__)

_AGAIN = 5.0  # seconds between two starts
_NEEDS = {"flare": ("nvflare", "NVIDIA FLARE"), "flower": ("flwr", "Flower")}
_RELAY = "fedveil.deploy.flare."
_NOBODY = {"format_version": "1.0", "permissions": {"nobody": "none"}}
_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "file": {
            "class": "logging.handlers.RotatingFileHandler",
            "formatter": "plain",
            "filename": "engine.log",
            "maxBytes": 1 << 22,
            "backupCount": 2,
        }
    },
    "root": {"level": "INFO", "handlers": ["file"]},
}


def write_kit(home: HubHome | SiteHome) -> None:
    """All that the engine reads at this party."""
    home.engine.mkdir(mode=0o700, parents=True, exist_ok=True)
    texts = _flower(home) if home.agreement.engine == "flower" else _flare(home)
    for place, text in texts.items():
        keep_secret(home.engine / place, text)


def _flower(home: HubHome | SiteHome) -> dict[str, str]:
    agreement, socket = home.agreement, os.fspath(home.socket)
    if isinstance(home, SiteHome):
        known: dict[str, Any] = {"address": agreement.address, "guard": socket}
        key = certificates.as_openssh(home.certificate.key)
        own = {"node.key": key, "secret": secrets.token_hex(32)}
        return {"flower.json": json.dumps(known), "rootCA.pem": home.authority, **own}
    nodes = {site: certificates.public_key(home.site_certificate(site)) for site in agreement.sites}
    known = {"port": agreement.port, "socket": socket, "nodes": nodes}
    pair = {"server.crt": home.certificate.certificate, "server.key": home.certificate.key}
    return {"flower.json": json.dumps(known), **pair}


def _flare(home: HubHome | SiteHome) -> dict[str, str]:
    if isinstance(home, HubHome):
        name, startup, resources = "server", _server(home.agreement), _server_resources(home)
        pair, authority = home.certificate, home.authority.certificate
    else:
        name, startup, resources = "client", _client(home), _client_resources(home)
        pair, authority = home.certificate, home.authority
    for folder in ("startup", "local", "transfer"):
        (home.engine / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    return {
        f"startup/fed_{name}.json": json.dumps(startup),
        f"startup/{name}.crt": pair.certificate,
        f"startup/{name}.key": pair.key,
        "startup/rootCA.pem": authority,
        "local/resources.json": json.dumps(resources),
        "local/authorization.json": json.dumps(_NOBODY),
        "local/log_config.json": json.dumps(_LOGGING),
    }


class EngineProcess:
    """The engine's process at this party; it ends with ours, however that ends."""

    def __init__(self, home: HubHome | SiteHome) -> None:
        self._module = home.agreement.engine
        package, name = _NEEDS[self._module]
        if find_spec(package) is None:
            raise ConfigError(
                f"{name} is not installed here: pip install 'fedveil[{self._module}]'"
            )
        self._home, self._started = home, 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def keep_running(self) -> None:
        """Start it, or start it again if it has ended."""
        if self._process is not None:
            if self._process.poll() is None or monotonic() - self._started < _AGAIN:
                return
            _log.warning("the engine has ended, and is started again: see engine/engine.log")
        self._started = monotonic()
        write_kit(self._home)
        site = self._home.site if isinstance(self._home, SiteHome) else ""
        # -P: no modules from whatever directory this was started in.
        command = [sys.executable, "-P", "-m", f"fedveil.deploy.{self._module}"]
        command += [str(self._home.engine), site]
        with (self._home.path / "engine.out").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **_quiet(self._home)},
                umask=0o077,
            )

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)  # it keeps nothing that lasts
            self._process.wait()
        self._process = None


def _quiet(home: HubHome | SiteHome) -> dict[str, str]:
    """Flower is to tell nobody that it runs, and to talk to itself without a proxy."""
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))
    own = {"FLWR_HOME": os.fspath(home.engine), "NO_PROXY": direct, "no_proxy": direct}
    return {**own, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def _server(agreement: Agreement) -> dict[str, Any]:
    service = {"target": agreement.address, "scheme": "grpc"}
    keys = {"ssl_private_key": "server.key", "ssl_cert": "server.crt"}
    return {
        "format_version": 2,
        "servers": [
            {
                "name": agreement.name,
                "service": service,
                "admin_server": agreement.host,
                "admin_port": agreement.port,
                **keys,
                "ssl_root_cert": "rootCA.pem",
                "connection_security": "mtls",
            }
        ],
    }


def _client(home: SiteHome) -> dict[str, Any]:
    agreement = home.agreement
    service = {"target": agreement.address, "scheme": "grpc"}
    return {
        "format_version": 2,
        "servers": [{"name": agreement.name, "service": service, "identity": agreement.host}],
        "client": {
            "ssl_private_key": "client.key",
            "ssl_cert": "client.crt",
            "ssl_root_cert": "rootCA.pem",
            "fqsn": home.site,
            "is_leaf": True,
            "connection_security": "mtls",
        },
    }


def _client_resources(home: SiteHome) -> dict[str, Any]:
    return {
        **_CLOSED,
        "client": {"retry_timeout": 30, "compression": "None"},
        "components": [_relay("SiteRelay", home.socket)],
    }


def _server_resources(home: HubHome) -> dict[str, Any]:
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    place = {"root_dir": str(home.engine / "snapshots"), "uri_root": "/"}
    scheduler = "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler"
    manager = "nvflare.apis.impl.job_def_manager.SimpleJobDefManager"
    jobs = {"uri_root": str(home.engine / "jobs"), "job_store_id": "job_store"}
    limits = {"max_num_clients": len(home.agreement.sites), "heart_beat_timeout": 30}
    return {
        **_CLOSED,
        "servers": [{"admin_storage": "transfer", "admin_timeout": 10.0, **limits}],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor"
            ".StorageStatePersistor",
            "args": {"uri_root": "/", "storage": {"path": storage, "args": place}},
        },
        "components": [
            {"id": "job_scheduler", "path": scheduler, "args": {"max_jobs": 1}},
            {"id": "job_manager", "path": manager, "args": jobs},
            {"id": "job_store", "path": storage},
            _relay("HubRelay", home.socket),
        ],
    }


_CLOSED: Mapping[str, Any] = {
    "format_version": 2,
    "class_list_enforcement_mode": "enforce",
    "class_allow_list": [],
    "allow_log_streaming": False,
}


def _relay(name: str, socket: Path) -> dict[str, Any]:
    return {"id": "fedveil", "path": _RELAY + name, "args": {"socket": os.fspath(socket)}}
