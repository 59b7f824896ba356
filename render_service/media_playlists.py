"""Files that are no sound or film, but say where one is: what reads them goes there.

FFmpeg, which reads sounds and films here, follows such files by itself: it opens sockets for a
session description and waits on them, and fetches what a playlist names, past every rule for
addresses.
"""

from typing import Final

PROBED_BYTES: Final = 2**20
"""FFmpeg looks no further to find out what a file is."""

_BEGINNINGS: Final = (b"#extm3u", b"ffconcat", b"[playlist]", b"[reference]", b"rtsptext")
_MARKS: Final = (b"<mpd", b"<smoothstreamingmedia", b"<compositionplaylist", b"<asx", b"<smil")
_CONNECTION: Final = b"c=in "


def is_playlist(data: bytes) -> bool:
    """Whether what reads text as FFmpeg does, up to a byte of zero, takes `data` for a playlist."""
    text = data[:PROBED_BYTES].partition(b"\0")[0].removeprefix(b"\xef\xbb\xbf").lower()
    return (
        text.lstrip().startswith(_BEGINNINGS)
        or any(mark in text for mark in _MARKS)
        or any(line.startswith(_CONNECTION) for line in text.split(b"\n"))
    )
