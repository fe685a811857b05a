"""Secrets of many kinds, made up at run time: no beginning of a real token stands here, so that no scanner stumbles."""

from __future__ import annotations

import base64
import hashlib
import string


def drawn(seed: str, size: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Characters that look drawn by lot, the same ones each time; the last two are a letter and a digit."""
    numbers = b"".join(hashlib.sha256(f"{seed}{n}".encode()).digest() for n in range(size // 32 + 1))
    letter, digit = next(c for c in alphabet if c.isalpha()), next(c for c in alphabet if c.isdigit())
    return "".join(alphabet[n % len(alphabet)] for n in numbers[: size - 2]) + letter + digit


HEX = string.digits + "abcdef"
UPPER = string.ascii_uppercase + "234567"
BASE64 = string.ascii_letters + string.digits + "+/"
BEGIN, END = "-----BEGIN " + "{}PRIVATE KEY-----", "-----END " + "{}PRIVATE KEY-----"


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _json64(seed: str) -> str:
    return "ey" + "J" + drawn(seed, 30)


def key_lines(seed: str) -> list[str]:
    """The lines of a private key between its first and its last."""
    return [drawn(f"{seed}{n}", 64, BASE64) for n in range(6)] + [drawn(seed, 22, BASE64) + "=="]


#: Kind -> a line as it is met in practice, and the parts of it that nobody may see.
LINES: dict[str, tuple[str, list[str]]] = {}


def _plant(kind: str, line: str, *secrets: str) -> None:
    for number, secret in enumerate(secrets):
        line = line.replace(f"{{{number}}}", secret)
    LINES[kind] = (line, list(secrets))


_plant("aws access key id", "using credentials {0} from the instance", "AK" + "IA" + drawn("a", 16, UPPER))
_plant("aws temporary key id", "AWS_ACCESS_KEY_ID={0}", "AS" + "IA" + drawn("b", 16, UPPER))
_plant("aws secret key", "aws_secret_access_key = {0}", drawn("c", 40, BASE64))
_plant("aws session token", "export AWS_SESSION_TOKEN={0}", "FwoG" + drawn("d", 200, BASE64))
_plant("aws json", '{"SecretAccessKey": "{0}", "Expiration": "2026-01-01"}', drawn("e", 40, BASE64))
_plant("google api key", "https://maps.googleapis.com/x?key={0}&v=1", "AI" + "za" + drawn("f", 35))
_plant("google oauth", "access token ya" + "29.{0}", drawn("g", 60))
_plant(
    "google service account",
    '"private_key_id": "{0}", "private_key": "' + BEGIN.format("") + "\\n{1}\\n" + END.format("") + '\\n"',
    drawn("h", 40, HEX),
    drawn("i", 64, BASE64),
)
_plant(
    "azure storage key",
    "DefaultEndpointsProtocol=https;AccountName=data;AccountKey={0};EndpointSuffix=core",
    drawn("j", 86, BASE64) + "==",
)
_plant("azure sas", "https://data.blob.core.windows.net/c/f?sv=2024&se=2026&sig={0}&sp=r", drawn("k", 43) + "%3D")
_plant("azure client secret", "login with {0}", "abc8" + "Q~" + drawn("l", 34))
_plant("github classic", "git clone failed for {0}", "gh" + "p_" + drawn("m", 36))
_plant("github oauth", "token: {0}", "gh" + "o_" + drawn("n", 36))
_plant("github fine grained", "auth {0}", "github" + "_pat_" + drawn("o", 82))
_plant("gitlab", "PRIVATE-TOKEN: {0}", "gl" + "pat-" + drawn("p", 20))
_plant("hugging face", "login(token='{0}')", "h" + "f_" + drawn("q", 34))
_plant("openai", "client = OpenAI(api_key='{0}')", "s" + "k-" + drawn("r", 48))
_plant("openai project", "key {0} refused", "s" + "k-proj-" + drawn("s", 80))
_plant("anthropic", "x-api-key: {0}", "sk" + "-ant-api03-" + drawn("t", 80))
_plant("wandb variable", "WANDB_API_KEY={0}", drawn("u", 40, HEX))
_plant("wandb login", "wandb login --relogin {0}", drawn("v", 40, HEX))
_plant("slack token", "slack said no to {0}", "xo" + "xb-123456789012-" + drawn("w", 24))
_plant("slack webhook", "POST https://hooks." + "slack.com/services/{0}", "T01ABCDEF/B01ABCDEF/" + drawn("x", 24))
_plant("discord webhook", "https://discord.com/api/webhooks/{0}", "123456789012345678/" + drawn("y", 60))
_plant("stripe", "charge with {0}", "sk" + "_live_" + drawn("z", 24))
_plant("twilio", "TWILIO {0} / TWILIO_AUTH_TOKEN={1}", "S" + "K" + drawn("A", 32, HEX), drawn("B", 32, HEX))
_plant("sendgrid", "mail via {0}", "S" + "G." + drawn("C", 22) + "." + drawn("D", 43))
_plant("npm", "//registry.npmjs.org/:_authToken={0}", "np" + "m_" + drawn("E", 36))
_plant("pypi", "password = {0}", "py" + "pi-AgEIcHlwaS5vcmc" + drawn("F", 60))
_plant("docker auth", '{"auths": {"registry.example.com": {"auth": "{0}"}}}', _b64("robot:" + drawn("G", 20)))
_plant("jwt", "kubeconfig token {0}", _json64("H") + "." + _json64("I") + "." + drawn("J", 43))
_plant("kubeconfig key", "    client-key-data: {0}", drawn("K", 120, BASE64))
_plant("kubernetes variable", '"env": [{"name": "DB_PASSWORD", "value": "{0}"}]', "correct-horse")
_plant("address with password", "pip install --index-url https://deploy:{0}@pypi.example.com/simple x", drawn("L", 20))
_plant("address with a token", "remote: https://{0}@github.com/a/b.git", drawn("M", 40))
_plant("database address", "postgresql+psycopg2://mlflow:{0}@db:5432/mlflow", "pa/ss:w0rd!"[0:2] + drawn("N", 10))
_plant("redis address", "redis://:{0}@cache:6379/0", drawn("O", 12))
_plant("basic authorization", "Authorization: Basic {0}", _b64("admin:" + drawn("P", 9)))
_plant("bearer", "> authorization: Bearer {0}", drawn("Q", 40))
_plant("cookie", "Set-Cookie: session={0}; Path=/", drawn("R", 32))
_plant("netrc", "machine api.wandb.ai login user password {0}", drawn("S", 40, HEX))
_plant("pgpass", "db.example.com:5432:mlflow:mlflow:{0}", drawn("T", 12))
_plant("mlflow", "MLFLOW_TRACKING_PASSWORD={0}", "hunter2")
_plant("comet", "COMET_API_KEY: {0}", drawn("U", 25))
_plant("neptune", "NEPTUNE_API_TOKEN={0}", "ey" + "Jh" + drawn("V", 118) + "==")
_plant(
    "presigned address",
    "GET https://b.s3.amazonaws.com/k?X-Amz-Credential={0}&X-Amz-Signature={1}",
    "AK" + "IA" + drawn("W", 16, UPPER) + "%2F20260101",
    drawn("X", 64, HEX),
)
_plant("command line", "python train.py --api-key {0} --lr 1e-4", drawn("Y", 18))
_plant("arguments as a list", "['train.py', '--hub_token', '{0}', '--lr']", drawn("Z", 24))
_plant("ini", "[db]\npassword = {0}\nhost = db", "swordfish")
_plant("yaml", "  secret: '{0}'", "it is \\'quoted\\'")
_plant("python", 'os.environ["MY_SERVICE_SECRET"] = "{0}"', "open sesame 1")
_plant("annotated python", '    password: str = "{0}"', "letmein")
_plant("random key", "INTERNAL_KEY={0}", drawn("1", 32))
_plant("sentry", "dsn=https://{0}@o1.ingest.sentry.io/2", drawn("2", 32, HEX))
_plant("nvidia", "NGC says {0}", "nv" + "api-" + drawn("3", 60))
_plant("databricks", "host x token {0}", "da" + "pi" + drawn("4", 32, HEX))
_plant("vault", "X-Vault-Token: {0}", "hv" + "s." + drawn("5", 90))
_plant("telegram", "bot {0}", "123456789:" + "AA" + drawn("6", 33))
_plant("coloured", "\x1b[32m{0}\x1b[0m", "h" + "f_" + drawn("7", 34))
_plant("escaped", "'line one\\n{0}\\n'", "AK" + "IA" + drawn("8", 16, UPPER))
_plant("plain variable", "export HF_TOKEN={0}", "hunter3")
_plant("query", "GET https://example.com/x?token={0}&b=1", "hunter4")
_plant("xml", "<password>{0}</password>", "hunter5")
_plant("escaped page", "&quot;password&quot;: &quot;{0}&quot;", "hunter6")
_plant("sshpass", "sshpass -p {0} ssh node1", "t0ps3cr3t")
_plant("e-mail", "contact {0} about it", "jane.doe@" + "example.com")
_plant("home folder", 'File "/home/{0}/train.py", line 3', "janedoe")

#: A private key as it lies in a file: over many lines.
_SSH = key_lines("ssh")
PEM = ("\n".join((BEGIN.format("OPENSSH "), *_SSH, END.format("OPENSSH "))), _SSH)
