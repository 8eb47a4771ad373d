"""API keys: what a file may say, and when what it no longer says ends."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from deployments.http import tenants as module
from deployments.http.errors import ApiError
from deployments.http.tenants import Tenants
from tests.documents import blocks


def entry(tenant: str, key: str) -> str:
    return f"- {{tenant: {tenant}, sha256: {hashlib.sha256(key.encode()).hexdigest()}}}"


def written(path: Path, *entries: str) -> str:
    path.write_text("\n".join(["keys:", *entries]))
    return str(path)


def who(tenants: Tenants, key: str | None) -> str | None:
    """The tenant of a key as it is sent, None where it is refused."""
    try:
        return tenants.tenant(None if key is None else key.encode().decode("latin-1"), None).name
    except ApiError as error:
        assert error.status == 401
        return None


def test_the_digest_of_the_empty_text_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty text"):
        Tenants.from_file(written(tmp_path / "keys", entry("a", "secret"), entry("root", "")))


@pytest.mark.parametrize("key", [None, ""])
def test_no_key_is_nobody(key: str | None) -> None:
    empty = module.ApiKey(tenant="root", sha256=hashlib.sha256(b"").hexdigest(), administrator=True)
    assert who(Tenants([empty]), key) is None


def test_a_key_has_one_tenant(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="occurs 2 times"):
        Tenants.from_file(written(tmp_path / "keys", entry("a", "secret"), entry("b", "secret")))


@pytest.mark.parametrize("twice", ["keys:\n{0}\nkeys:\n{1}", "keys:\n{0}\n  administrator: true\n"])
def test_a_name_that_occurs_twice_is_an_error(tmp_path: Path, twice: str) -> None:
    digest = hashlib.sha256(b"c").hexdigest()
    first = f"- tenant: a\n  sha256: {digest}\n  administrator: false"
    (tmp_path / "keys").write_text(twice.format(first, entry("b", "d")))
    with pytest.raises(ValueError, match="occurs 2 times"):
        Tenants.from_file(str(tmp_path / "keys"))


def test_a_key_is_the_bytes_that_were_sent(tmp_path: Path) -> None:
    tenants = Tenants.from_file(written(tmp_path / "keys", entry("a", "schlüssel")))
    assert who(tenants, "schlüssel") == "a"
    with pytest.raises(ApiError):
        tenants.tenant("schlüssel", None)  # sent as Latin-1


def test_keys_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    tenants = Tenants.from_file(written(path, entry("a", "old")))
    assert who(tenants, "old") == "a"
    monkeypatch.setattr(module, "RELOAD_S", 0)
    os.replace(written(tmp_path / "next", entry("a", "new")), path)
    assert (who(tenants, "old"), who(tenants, "new")) == (None, "a")
    path.write_text("keys: [")
    assert who(tenants, "new") == "a"
    path.unlink()
    assert who(tenants, "new") is None
    written(path, entry("b", "new"))
    assert who(tenants, "new") == "b"


def test_the_documented_key_file_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for its keys, which everybody can read."""
    (example,) = [each.text for each in blocks("docs/authentication.md", "yaml") if each.text.startswith("keys:")]
    (tmp_path / "keys").write_text(example)
    with pytest.raises(ValueError, match="published example key"):
        Tenants.from_file(str(tmp_path / "keys"))
    monkeypatch.setattr(module, "_EXAMPLE_DIGESTS", [])
    tenants = Tenants.from_file(str(tmp_path / "keys"))
    assert (who(tenants, "search-example-key"), who(tenants, "operations-example-key")) == ("search", "operations")
    limits = tenants.tenant("search-example-key", None).limits
    assert all(getattr(limits, name) is not None for name in type(limits).model_fields)


def test_a_file_is_read_again_within_ten_seconds() -> None:
    assert 0 < module.RELOAD_S < 10
