"""How speech is decoded: paths of CTC, and the tokens that Whisper writes times with."""
