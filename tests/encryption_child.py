"""The process that a test kills: it turns encryption of one home on and off for ever, without torch.

python -m tests.encryption_child HOME
"""

import sys
from dataclasses import replace

from kvchat.app.config import read_settings
from kvchat.app.unlock import key_in_use
from kvchat.cli.commands.encrypt import switch
from kvchat.platform.encryptor import Encryptor
from kvchat.platform.key_file import KeyKind, KeyState, wrap
from kvchat.session.database.plain_tables import PLAIN
from kvchat.session.encryption.tables import EncryptedTables

DATA_KEY = bytes(range(32))
CHEAP = 4


def main(home: str) -> None:
    paths = read_settings(environ={"KVCHAT_HOME": home}).paths
    encrypted = EncryptedTables(Encryptor(DATA_KEY))
    key = wrap(DATA_KEY, b"open sesame", KeyKind.PASSPHRASE, CHEAP)
    print("ready", flush=True)
    while True:
        if key_in_use(paths) is None:
            switch(paths, key, PLAIN, encrypted)
        else:
            switch(paths, replace(key, state=KeyState.TURNING_OFF), encrypted, PLAIN)


if __name__ == "__main__":
    main(sys.argv[1])
