"""What `kvchat doctor` says of encryption. Asks for no passphrase."""

from kvchat.app.config import Settings
from kvchat.app.unlock import PassphraseMissing, key_in_use, unlocked
from kvchat.cli.commands.doctor.finding import CheckResult, CheckState
from kvchat.errors import KvchatError
from kvchat.platform.key_file import key_path
from kvchat.session.database.backups import damaged_copies


def find_encryption(settings: Settings) -> tuple[CheckResult, Settings | None]:
    """Say what is encrypted; return the settings with the key too, None where it was not to be had."""
    try:
        key = key_in_use(settings.paths)
        if key is None:
            return _finding("conversations and KV are in the clear", encrypted=False), settings
        words = f"conversations and KV are encrypted, {key_path(settings.paths.data_dir)}"
        try:
            opened = unlocked(settings, may_ask=False)
        except PassphraseMissing:
            return _finding(f"{words}; not opened: no passphrase was given", encrypted=True), None
    except KvchatError as error:
        broken = _finding("the key does not open", encrypted=True, advice=str(error), state=CheckState.BROKEN)
        return broken, None
    if left := damaged_copies(settings.paths.sessions_db):
        advice = f"damaged databases that were kept may be in the clear; remove {', '.join(map(str, left))}"
        return _finding(f"{words}; it opens", encrypted=True, advice=advice, state=CheckState.LOOK), opened
    return _finding(f"{words}; it opens", encrypted=True), opened


def _finding(
    line: str, *, encrypted: bool, advice: str | None = None, state: CheckState = CheckState.OK
) -> CheckResult:
    return CheckResult(
        name="encryption",
        lines=(line,),
        state=state,
        advice=advice,
        values={"encrypted": encrypted},
        exit_code=0 if state is not CheckState.BROKEN else 3,
    )
