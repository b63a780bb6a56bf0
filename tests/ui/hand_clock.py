"""A clock that a test sets."""


class HandClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
