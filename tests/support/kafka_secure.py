"""A Kafka that asks who is there, by password, certificate or token, and lets each do only what it may."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from . import services

__all__ = ["PASSWORD", "Secured", "secured", "token_of"]

PASSWORD = "p@ss:w/rd 4711"  # noqa: S105 - of a server that lives as long as the tests
PATIENCE = 30.0
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required " + " ".join(
    f'user_{user}="{PASSWORD}"' for user in ("root", "shop", "stranger", "relay", "worker", "sharer", "operator", "declarer")
)
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_OAUTH = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """Three ways in: `login` with a password, `tls` with one through TLS, `mutual` with a certificate. `root` may do all."""

    login: str
    tls: str
    mutual: str
    folder: Path
    admin: AdminClient

    def url(self, user: str, **options: object) -> str:
        """For a user with a password, in the clear."""
        return f"kafka://{user}:{quote(PASSWORD, safe='')}@{self.login}?" + _joined({"security.protocol": "SASL_PLAINTEXT", **options})

    def url_with_tls(self, user: str, **options: object) -> str:
        """For a user with a password, who knows the server by its CA."""
        return f"kafka://{user}:{quote(PASSWORD, safe='')}@{self.tls}?" + _joined({"ssl.ca.location": self.folder / "ca.pem", **options})

    def url_with_certificate(self, **options: object) -> str:
        """For the one whose certificate says CN=client."""
        shown = {"ssl.certificate.location": self.folder / "client.pem", "ssl.key.location": self.folder / "client.key"}
        return f"kafka://{self.mutual}?" + _joined({"security.protocol": "SSL", "ssl.ca.location": self.folder / "ca.pem", **shown, **options})

    def url_with_token(self) -> str:
        """For whoever has a token, which only a callback can give; see `token_of`."""
        return f"kafka://{self.login}?security.protocol=SASL_PLAINTEXT&sasl.mechanism=OAUTHBEARER"

    def allow(self, user: str, *, topics: str = "", groups: str = "", transactions: str = "") -> None:
        """Let a user do all with the topics, groups and transactions whose names begin so."""
        everything = AclOperation.ALL
        prefixes = {ResourceType.TOPIC: topics, ResourceType.GROUP: groups, ResourceType.TRANSACTIONAL_ID: transactions}
        self._bind(user, [(what, name, ResourcePatternType.PREFIXED, everything) for what, name in prefixes.items() if name])

    def grant(self, user: str, what: ResourceType, name: str, *operations: AclOperation) -> None:
        """Let a user do these things, and no others, with what has this very name; or begins so, with a star behind it."""
        kind = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
        self._bind(user, [(what, name.rstrip("*"), kind, operation) for operation in operations])

    def _bind(self, user: str, rights: list[tuple[ResourceType, str, ResourcePatternType, AclOperation]]) -> None:
        bindings = [AclBinding(what, name, kind, f"User:{user}", "*", operation, AclPermissionType.ALLOW) for what, name, kind, operation in rights]
        for future in self.admin.create_acls(bindings).values():
            future.result(PATIENCE)

    def forbid(self, user: str, name: str) -> None:
        """Take back what was allowed with the topics whose names begin so."""
        every = AclBindingFilter(
            ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY
        )
        for future in self.admin.delete_acls([every]).values():
            future.result(PATIENCE)


def token_of(user: str) -> tuple[str, float]:
    """A token without a signature, which only a server for tests takes, and when it ends."""
    now = time.time()
    head, claims = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + 600})
    packed = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (head, claims))
    return f"{'.'.join(packed)}.", now + 600


@contextmanager
def secured(folder: Path) -> Iterator[Secured]:
    """Start one, and make the certificates in this folder."""
    images = services.present_images()
    if "KAFKA_IMAGE" not in images:
        services.unavailable("no image for kafka is here")
    _certify(folder)
    login, tls, mutual = services.free_port(), services.free_port(), services.free_port()
    wanted = services.definitions(images)["kafka"]
    wanted["environment"] |= _environment(folder, login, tls, mutual)
    root = {"sasl.username": "root", "sasl.password": PASSWORD, "sasl.mechanism": "PLAIN", "security.protocol": "SASL_PLAINTEXT", "log_level": 0}
    admin = AdminClient({"bootstrap.servers": f"localhost:{login}", **root})
    with services.serving(wanted, {"9092": login, "9095": tls, "9096": mutual}, lambda: admin.list_topics(timeout=5)):
        for future in admin.alter_user_scram_credentials([_scram("clerk")]).values():
            future.result(PATIENCE)
        yield Secured(login=f"localhost:{login}", tls=f"localhost:{tls}", mutual=f"localhost:{mutual}", folder=folder, admin=admin)


def _environment(folder: Path, login: int, tls: int, mutual: int) -> dict[str, str]:
    addresses = f"LOGIN://localhost:{login},TLS://localhost:{tls},MUTUAL://localhost:{mutual},INTERNAL://localhost:9094"
    ways = {
        "KAFKA_LISTENERS": "LOGIN://:9092,TLS://:9095,MUTUAL://:9096,INTERNAL://localhost:9094,CONTROLLER://localhost:9093",
        "KAFKA_ADVERTISED_LISTENERS": addresses,
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "LOGIN:SASL_PLAINTEXT,TLS:SASL_SSL,MUTUAL:SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_LISTENER_NAME_MUTUAL_SSL_CLIENT_AUTH": "required",
        "KAFKA_SASL_ENABLED_MECHANISMS": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
    }
    modules = {
        f"KAFKA_LISTENER_NAME_{listener}_{mechanism}_SASL_JAAS_CONFIG": f"{module};"
        for listener in ("LOGIN", "TLS")
        for mechanism, module in (("PLAIN", _PLAIN), ("SCRAM___SHA___512", _SCRAM), ("OAUTHBEARER", _OAUTH))
    }
    rights = {
        "KAFKA_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "KAFKA_SUPER_USERS": "User:root;User:ANONYMOUS",  # the latter is the broker itself: its ways in are closed to all outside
    }
    certificates = {
        "KAFKA_SSL_KEYSTORE_TYPE": "PEM",
        "KAFKA_SSL_KEYSTORE_KEY": _line(folder / "server.key"),
        "KAFKA_SSL_KEYSTORE_CERTIFICATE_CHAIN": _line(folder / "server.pem"),
        "KAFKA_SSL_TRUSTSTORE_TYPE": "PEM",
        "KAFKA_SSL_TRUSTSTORE_CERTIFICATES": _line(folder / "ca.pem"),
    }
    return {**ways, **modules, **rights, **certificates}


def _line(file: Path) -> str:
    """A file as a property of Java's, which has one line."""
    return file.read_text().strip().replace("\n", "\\n")


def _scram(user: str) -> UserScramCredentialUpsertion:
    return UserScramCredentialUpsertion(user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode())


def _certify(folder: Path) -> None:
    _openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 30 -keyout ca.key -out ca.pem -subj /CN=authority")
    for name in ("server", "client"):
        _openssl(folder, f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name} -addext subjectAltName=DNS:localhost")
        _openssl(folder, f"x509 -req -days 30 -copy_extensions copy -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem")


def _openssl(folder: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def _joined(options: dict[str, object]) -> str:
    return "&".join(f"{name}={value}" for name, value in options.items())
