"""Fake secrets of many kinds, generated at run time so that secret scanners do not report this file."""

from __future__ import annotations

import base64
import hashlib
import string


def random_text(seed: str, size: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Return random-looking, reproducible characters; the last two are a letter and a digit."""
    numbers = b"".join(
        hashlib.sha256(f"{seed}{n}".encode()).digest() for n in range(size // 32 + 1)
    )
    letter, digit = (
        next(c for c in alphabet if c.isalpha()),
        next(c for c in alphabet if c.isdigit()),
    )
    return "".join(alphabet[n % len(alphabet)] for n in numbers[: size - 2]) + letter + digit


HEX = string.digits + "abcdef"
UPPER = string.ascii_uppercase + "234567"
BASE64 = string.ascii_letters + string.digits + "+/"
BEGIN, END = "-----BEGIN " + "{}PRIVATE KEY-----", "-----END " + "{}PRIVATE KEY-----"


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _json64(seed: str) -> str:
    return "ey" + "J" + random_text(seed, 30)


def key_lines(seed: str) -> list[str]:
    """Return a private key without its first and last lines."""
    return [random_text(f"{seed}{n}", 64, BASE64) for n in range(6)] + [
        random_text(seed, 22, BASE64) + "=="
    ]


#: Kind -> a line as in real logs, and its parts that must be redacted.
LINES: dict[str, tuple[str, list[str]]] = {}


def _plant(kind: str, line: str, *secrets: str) -> None:
    for number, secret in enumerate(secrets):
        line = line.replace(f"{{{number}}}", secret)
    LINES[kind] = (line, list(secrets))


_plant(
    "aws access key id",
    "using credentials {0} from the instance",
    "AK" + "IA" + random_text("a", 16, UPPER),
)
_plant("aws temporary key id", "AWS_ACCESS_KEY_ID={0}", "AS" + "IA" + random_text("b", 16, UPPER))
_plant("aws secret key", "aws_secret_access_key = {0}", random_text("c", 40, BASE64))
_plant("aws session token", "export AWS_SESSION_TOKEN={0}", "FwoG" + random_text("d", 200, BASE64))
_plant(
    "aws json",
    '{"SecretAccessKey": "{0}", "Expiration": "2026-01-01"}',
    random_text("e", 40, BASE64),
)
_plant(
    "google api key",
    "https://maps.googleapis.com/x?key={0}&v=1",
    "AI" + "za" + random_text("f", 35),
)
_plant("google oauth", "access token ya" + "29.{0}", random_text("g", 60))
_plant(
    "google service account",
    '"private_key_id": "{0}", "private_key": "'
    + BEGIN.format("")
    + "\\n{1}\\n"
    + END.format("")
    + '\\n"',
    random_text("h", 40, HEX),
    random_text("i", 64, BASE64),
)
_plant(
    "azure storage key",
    "DefaultEndpointsProtocol=https;AccountName=data;AccountKey={0};EndpointSuffix=core",
    random_text("j", 86, BASE64) + "==",
)
_plant(
    "azure sas",
    "https://data.blob.core.windows.net/c/f?sv=2024&se=2026&sig={0}&sp=r",
    random_text("k", 43) + "%3D",
)
_plant("azure client secret", "login with {0}", "abc8" + "Q~" + random_text("l", 34))
_plant("github classic", "git clone failed for {0}", "gh" + "p_" + random_text("m", 36))
_plant("github oauth", "token: {0}", "gh" + "o_" + random_text("n", 36))
_plant("github fine grained", "auth {0}", "github" + "_pat_" + random_text("o", 82))
_plant("gitlab", "PRIVATE-TOKEN: {0}", "gl" + "pat-" + random_text("p", 20))
_plant("hugging face", "login(token='{0}')", "h" + "f_" + random_text("q", 34))
_plant("openai", "client = OpenAI(api_key='{0}')", "s" + "k-" + random_text("r", 48))
_plant("openai project", "key {0} refused", "s" + "k-proj-" + random_text("s", 80))
_plant("anthropic", "x-api-key: {0}", "sk" + "-ant-api03-" + random_text("t", 80))
_plant("wandb variable", "WANDB_API_KEY={0}", random_text("u", 40, HEX))
_plant("wandb login", "wandb login --relogin {0}", random_text("v", 40, HEX))
_plant("slack token", "slack said no to {0}", "xo" + "xb-123456789012-" + random_text("w", 24))
_plant(
    "slack webhook",
    "POST https://hooks." + "slack.com/services/{0}",
    "T01ABCDEF/B01ABCDEF/" + random_text("x", 24),
)
_plant(
    "discord webhook",
    "https://discord.com/api/webhooks/{0}",
    "123456789012345678/" + random_text("y", 60),
)
_plant("stripe", "charge with {0}", "sk" + "_live_" + random_text("z", 24))
_plant(
    "twilio",
    "TWILIO {0} / TWILIO_AUTH_TOKEN={1}",
    "S" + "K" + random_text("A", 32, HEX),
    random_text("B", 32, HEX),
)
_plant("sendgrid", "mail via {0}", "S" + "G." + random_text("C", 22) + "." + random_text("D", 43))
_plant("npm", "//registry.npmjs.org/:_authToken={0}", "np" + "m_" + random_text("E", 36))
_plant("pypi", "password = {0}", "py" + "pi-AgEIcHlwaS5vcmc" + random_text("F", 60))
_plant(
    "docker auth",
    '{"auths": {"registry.example.com": {"auth": "{0}"}}}',
    _b64("robot:" + random_text("G", 20)),
)
_plant(
    "jwt", "kubeconfig token {0}", _json64("H") + "." + _json64("I") + "." + random_text("J", 43)
)
_plant("kubeconfig key", "    client-key-data: {0}", random_text("K", 120, BASE64))
_plant("kubernetes variable", '"env": [{"name": "DB_PASSWORD", "value": "{0}"}]', "correct-horse")
_plant(
    "address with password",
    "pip install --index-url https://deploy:{0}@pypi.example.com/simple x",
    random_text("L", 20),
)
_plant("address with a token", "remote: https://{0}@github.com/a/b.git", random_text("M", 40))
_plant(
    "database address",
    "postgresql+psycopg2://mlflow:{0}@db:5432/mlflow",
    "pa/ss:w0rd!"[0:2] + random_text("N", 10),
)
_plant("redis address", "redis://:{0}@cache:6379/0", random_text("O", 12))
_plant("basic authorization", "Authorization: Basic {0}", _b64("admin:" + random_text("P", 9)))
_plant("bearer", "> authorization: Bearer {0}", random_text("Q", 40))
_plant("cookie", "Set-Cookie: session={0}; Path=/", random_text("R", 32))
_plant("netrc", "machine api.wandb.ai login user password {0}", random_text("S", 40, HEX))
_plant("pgpass", "db.example.com:5432:mlflow:mlflow:{0}", random_text("T", 12))
_plant("mlflow", "MLFLOW_TRACKING_PASSWORD={0}", "hunter2")
_plant("comet", "COMET_API_KEY: {0}", random_text("U", 25))
_plant("neptune", "NEPTUNE_API_TOKEN={0}", "ey" + "Jh" + random_text("V", 118) + "==")
_plant(
    "presigned address",
    "GET https://b.s3.amazonaws.com/k?X-Amz-Credential={0}&X-Amz-Signature={1}",
    "AK" + "IA" + random_text("W", 16, UPPER) + "%2F20260101",
    random_text("X", 64, HEX),
)
_plant("command line", "python train.py --api-key {0} --lr 1e-4", random_text("Y", 18))
_plant("arguments as a list", "['train.py', '--hub_token', '{0}', '--lr']", random_text("Z", 24))
_plant("ini", "[db]\npassword = {0}\nhost = db", "swordfish")
_plant("yaml", "  secret: '{0}'", "it is \\'quoted\\'")
_plant("python", 'os.environ["MY_SERVICE_SECRET"] = "{0}"', "open sesame 1")
_plant("annotated python", '    password: str = "{0}"', "letmein")
_plant("random key", "INTERNAL_KEY={0}", random_text("1", 32))
_plant("sentry", "dsn=https://{0}@o1.ingest.sentry.io/2", random_text("2", 32, HEX))
_plant("nvidia", "NGC says {0}", "nv" + "api-" + random_text("3", 60))
_plant("databricks", "host x token {0}", "da" + "pi" + random_text("4", 32, HEX))
_plant("vault", "X-Vault-Token: {0}", "hv" + "s." + random_text("5", 90))
_plant("telegram", "bot {0}", "123456789:" + "AA" + random_text("6", 33))
_plant("coloured", "\x1b[32m{0}\x1b[0m", "h" + "f_" + random_text("7", 34))
_plant("escaped", "'line one\\n{0}\\n'", "AK" + "IA" + random_text("8", 16, UPPER))
_plant("plain variable", "export HF_TOKEN={0}", "hunter3")
_plant("query", "GET https://example.com/x?token={0}&b=1", "hunter4")
_plant("xml", "<password>{0}</password>", "hunter5")
_plant("escaped page", "&quot;password&quot;: &quot;{0}&quot;", "hunter6")
_plant("sshpass", "sshpass -p {0} ssh node1", "t0ps3cr3t")
_plant("e-mail", "contact {0} about it", "jane.doe@" + "example.com")
_plant("home folder", 'File "/home/{0}/train.py", line 3', "janedoe")

# Prose, and lines of configuration files
_plant("prose password", "I logged in, the password is {0} by the way", "hunter7")
_plant("prose password was", "the admin password was {0}.", "Tr0ub4dor")
_plant("prose token", "my token: {0}", random_text("pt", 24))
_plant("prose token is", "the access token is {0}, keep it", random_text("pt2", 24))
_plant("prose key is", "the key is {0}", random_text("pk", 32))
_plant("prose api key", "using API key {0} for now", random_text("pa", 28))
_plant("prose apikey is", "apikey is {0}", "abc123def")
_plant("prose set to", "set the secret to {0} please", "s3cr3tvalue")
_plant("header prose", "Authorization header was Bearer {0}", random_text("ah", 40))
_plant(
    "header prose basic",
    "sent authorization header Basic {0}",
    _b64("admin:" + random_text("ab", 9)),
)
_plant("header tuple", "('Authorization', 'Bearer {0}')", random_text("ah2", 40))
_plant("header bytes", "b'authorization': b'Bearer {0}'", random_text("ah3", 40))
_plant("header curl", "curl -H 'Authorization: token {0}' https://x", random_text("ah4", 40, HEX))
_plant(
    "sql server",
    "Server=tcp:db.example.com,1433;Database=x;User ID=sa;Password={0};Encrypt=True",
    "Pa$$w0rd!",
)
_plant("odbc pwd", "DRIVER={ODBC};SERVER=db;UID=sa;PWD={0}", "sw0rdf1sh")
_plant("mongo srv", "mongodb+srv://app:{0}@cluster0.abcde.mongodb.net/x", random_text("ms", 14))
_plant("jdbc", "jdbc:postgresql://db/x?user=a&password={0}&ssl=true", "hunter8")
_plant(
    "s3 presigned v2",
    "https://b.s3.amazonaws.com/k?AWSAccessKeyId={0}&Expires=1&Signature={1}",
    "AK" + "IA" + random_text("s2", 16, UPPER),
    random_text("s3", 27, BASE64) + "%3D",
)
_plant("s3 token", "...&X-Amz-Security-Token={0}&X-Amz-SignedHeaders=host", random_text("s4", 120))
_plant(
    "sas at start",
    "https://x.blob.core.windows.net/c?sp=r&st=2026&sv=2022&sr=b&sig={0}",
    random_text("sas", 43) + "%3D",
)
_plant(
    "sas env", "AZURE_STORAGE_SAS_TOKEN='?sv=2022&ss=b&sig={0}'", random_text("sas2", 43) + "%3D"
)
_plant(
    "gcs signed",
    "https://storage.googleapis.com/b/o?X-Goog-Signature={0}",
    random_text("gcs", 256, HEX),
)
_plant(
    "aliyun oss",
    "https://b.oss-cn.aliyuncs.com/x?OSSAccessKeyId={0}&Expires=1&Signature={1}",
    "LT" + "AI5t" + random_text("oss", 18),
    random_text("oss2", 27, BASE64) + "%3D",
)
_plant("netrc lines", "machine huggingface.co\n  login me\n  password {0}\n", random_text("nl", 20))
_plant("netrc account", "machine x login me account y password {0}", "hunter9x")
_plant("pgpass star", "*:*:*:*:{0}", random_text("pg", 12))
_plant("pgpass port", "localhost:5433:db:me:{0}", random_text("pg2", 12))
_plant("kube token", "users:\n- name: me\n  user:\n    token: {0}", random_text("kt", 40))
_plant("kube yaml var", "- name: HF_TOKEN\n  value: {0}", "hunter10")
_plant(
    "kube yaml var quoted", '        - name: DB_PASSWORD\n          value: "{0}"', "correct horse 3"
)
_plant(
    "kube secret data",
    "kind: Secret\ndata:\n  password: {0}\n  api-key: {1}",
    _b64("hunter11"),
    _b64("hunter12"),
)
_plant(
    "docker auth pretty",
    '{\n  "auths": {\n    "ghcr.io": {\n      "auth": "{0}"\n    }\n  }\n}',
    _b64("me:" + random_text("da", 20)),
)
_plant("docker identitytoken", '"identitytoken": "{0}"', random_text("di", 60))
_plant("docker login", "docker login -u me -p {0} ghcr.io", random_text("dl", 16))
_plant("docker login words", "docker login -u me -p {0} ghcr.io", "hunter13")
_plant(
    "pip conf",
    "[global]\nextra-index-url = https://__token__:{0}@pypi.example.com/simple",
    random_text("pc", 24),
)
_plant("uv", "UV_INDEX_PRIVATE_PASSWORD={0}", "hunter14")
_plant("hf cli", "huggingface-cli login --token {0}", "h" + "f_" + random_text("hc", 34))
_plant("hf header", "Invalid user token. token={0}", "h" + "f_" + random_text("hh", 34))
_plant(
    "wandb netrc", "machine api.wandb.ai\n  login user\n  password {0}", random_text("wn", 40, HEX)
)
_plant("wandb settings", '"api_key": "{0}"', random_text("ws", 40, HEX))
_plant("wandb python", "wandb.login(key='{0}')", random_text("wp", 40, HEX))
_plant("wandb v1", "{0}", "wandb" + "_v1_" + random_text("wv", 60))
_plant(
    "github url", "https://x-access-token:{0}@github.com/a/b", "gh" + "s_" + random_text("gu", 36)
)
_plant(
    "git extraheader",
    "http.https://github.com/.extraheader AUTHORIZATION: basic {0}",
    _b64("x-access-token:" + "gh" + "s_" + random_text("ge", 36)),
)
_plant("github actions", "::add-mask::{0}", random_text("ga", 30))
_plant(
    "slack workflow",
    "https://hooks.slack.com/workflows/{0}",
    "T01ABCDEF/A01ABCDEF/" + random_text("sw", 24),
)
_plant(
    "discord canary",
    "https://canary.discord.com/api/webhooks/{0}",
    "123456789012345678/" + random_text("dc", 60),
)
_plant(
    "discord v10",
    "https://discordapp.com/api/v10/webhooks/{0}",
    "123456789012345678/" + random_text("dv", 68),
)
_plant(
    "discord bot",
    "Bot {0}",
    "MTIzNDU2Nzg5MDEyMzQ1Njc4." + random_text("db", 6) + "." + random_text("db2", 38),
)
_plant(
    "telegram url",
    "https://api.telegram.org/bot{0}/sendMessage",
    "123456789:" + "AA" + random_text("tu", 33),
)
_plant(
    "teams workflow",
    "https://prod-1.westus.logic.azure.com:443/workflows/x?sig={0}",
    random_text("tw", 43),
)
_plant(
    "google chat",
    "https://chat.googleapis.com/v1/spaces/A/messages?key={0}&token={1}",
    "AI" + "za" + random_text("gc", 35),
    random_text("gc2", 43),
)
_plant(
    "feishu",
    "https://open.feishu.cn/open-apis/bot/v2/hook/{0}",
    "12345678-1234-1234-1234-" + random_text("fe", 12, HEX),
)
_plant(
    "dingtalk", "https://oapi.dingtalk.com/robot/send?access_token={0}", random_text("dt", 64, HEX)
)
_plant(
    "wecom",
    "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={0}",
    "12345678-1234-1234-1234-" + random_text("wc", 12, HEX),
)
_plant("generic webhook", "WEBHOOK_URL=https://hooks.example.com/{0}", random_text("gw", 30))
_plant(
    "cookie request",
    "Cookie: csrftoken={0}; sessionid={1}",
    random_text("co", 32),
    random_text("co2", 32),
)
_plant("cookie dict", "cookies={'session': '{0}'}", random_text("cd", 40))
_plant("cookie jar", "<Cookie sessionid={0} for example.com/>", random_text("cj", 32))
_plant("cookie prose", "sent cookie _session={0}", random_text("cp", 32))
_plant("url userinfo ftp", "ftp://me:{0}@files.example.com/x", "hunter15")
_plant(
    "s3fs env",
    "s3fs key='{0}', secret='{1}'",
    "AK" + "IA" + random_text("sf", 16, UPPER),
    random_text("sf2", 40, BASE64),
)
_plant(
    "boto",
    "aws_access_key_id={0}, aws_secret_access_key={1}",
    "AK" + "IA" + random_text("bo", 16, UPPER),
    random_text("bo2", 40, BASE64),
)
_plant(
    "rclone",
    "secret_access_key = {0}\npass = {1}",
    random_text("rc", 40, BASE64),
    random_text("rc2", 22),
)
_plant("ssh pass prose", "Enter passphrase for key '/home/x/.ssh/id': {0}", "hunter16")
_plant("redis cli", "redis-cli -h cache -a {0} ping", "hunter17")
_plant("psql env", "PGPASSWORD={0} psql -h db", "hunter18")
_plant("mysql", "mysql -u root -p{0} db", "hunter19")
_plant("openssl", "openssl enc -aes-256-cbc -k {0}", "hunter20")
_plant("curl user", "curl -u me:{0} https://x", "hunter21")
_plant("wget", "wget --user=me --password={0} https://x", "hunter22")
_plant("json token", '{"token":"{0}"}', random_text("jt", 20))
_plant("json access", "'access_token': '{0}', 'expires_in': 3600", "short1tok")
_plant(
    "clearml",
    'api { credentials { access_key = "{0}", secret_key = "{1}" } }',
    random_text("cl", 20, UPPER),
    random_text("cl2", 50),
)
_plant("mlflow uri", "MLFLOW_TRACKING_URI=https://me:{0}@mlflow.example.com", "hunter23")
_plant("ngc", "NGC_API_KEY={0}", random_text("ng", 84))
_plant(
    "modal",
    "MODAL_TOKEN_ID={0} MODAL_TOKEN_SECRET={1}",
    "ak-" + random_text("mo", 22),
    "as-" + random_text("mo2", 22),
)
_plant("runpod", "{0}", "rp" + "a_" + random_text("rp", 40))
_plant("lambda", "secret_mycluster_{0}.{1}", random_text("la", 32, HEX), random_text("la2", 32))
_plant("together", "TOGETHER_API_KEY={0}", random_text("to", 64, HEX))
_plant("cohere", "CO_API_KEY={0}", random_text("ch", 40))
_plant("vast", "vastai set api-key {0}", random_text("va", 64, HEX))
_plant("azure openai", "'api-key': '{0}'", random_text("ao", 32, HEX))
_plant("snowflake", "snowflake://me:{0}@acct/db", "hunter24")
_plant("supabase", "{0}", "sb" + "p_" + random_text("sb", 40, HEX))
_plant(
    "pem inline",
    "-----BEGIN RSA PRIVATE KEY----- {0} -----END RSA PRIVATE KEY-----",
    random_text("pi", 64, BASE64),
)
_plant(
    "ppk",
    "Private-Lines: 2\n{0}\n{1}\nPrivate-MAC: {2}",
    random_text("pp1", 64, BASE64),
    random_text("pp2", 64, BASE64),
    random_text("pp3", 40, HEX),
)
_plant("htpasswd", "admin:$apr1${0}$x", "abcdefgh")
_plant(
    "shadow", "root:$6${0}$" + random_text("sh2", 80) + ":19000:0:99999:7:::", random_text("sh", 12)
)
_plant("credentials in args", "--wandb_key={0}", random_text("cr", 40, HEX))
_plant("hf dataclass", "TrainingArguments(hub_token={0}, push=True)", random_text("hd", 37))
_plant("comparison", "if password == '{0}' or api_key != \"{1}\":", "hunter27", "hunter28")
_plant("dict repr", "{'db_password': '{0}', 'lr': 1}", "hunter26")
_plant("key space", "api_key {0}", random_text("ks", 32))
_plant(
    "AWS creds prose",
    "credentials: {0} / {1}",
    "AK" + "IA" + random_text("ac", 16, UPPER),
    random_text("ac2", 40, BASE64),
)
_plant("prose quoted", "the password is '{0}' for the db", "correct horse")
_plant("prose plain word", "The password is {0}.", "swordfish")
_plant("prose plain word at the end", "he said the secret was {0}", "swordfish")

#: A private key in a file: several lines.
_SSH = key_lines("ssh")
PEM = ("\n".join((BEGIN.format("OPENSSH "), *_SSH, END.format("OPENSSH "))), _SSH)
