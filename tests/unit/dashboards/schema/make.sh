#!/usr/bin/env bash
# Makes dashboard.json anew from Grafana's own types (Apache-2.0). Needs Node; the tests do not.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
version=13.2.3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --ignore-scripts --legacy-peer-deps \
  "@grafana/schema@$version" ts-json-schema-generator typescript
npx ts-json-schema-generator --no-type-check --type Dashboard \
  --path node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen.d.ts -o schema.json
python3 -c '
import json, sys
comment = (
    "Made by tests/unit/dashboards/schema/make.sh from the types of @grafana/schema "
    + sys.argv[1] + " (Apache-2.0, Copyright Grafana Labs)"
)
schema = {"$comment": comment, **json.load(sys.stdin)}
print(json.dumps(schema, indent=1, sort_keys=True))
' "$version" <schema.json >"$here/dashboard.json"
