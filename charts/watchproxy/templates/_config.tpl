{{/* The ProxyConfiguration: config with the fields that the chart adds. */}}
{{- define "watchproxy.configuration" -}}
{{- include "watchproxy.validate" . -}}
{{- $c := deepCopy .Values.config -}}
{{- if eq .Values.tls.mode "generated" -}}
{{- $generated := dict "namespace" .Release.Namespace "secretName" (include "watchproxy.generatedSecret" .) "configMapName" (include "watchproxy.caConfigMap" .)
  "dnsNames" (include "watchproxy.dnsNames" . | fromJsonArray) "ipAddresses" .Values.tls.ipAddresses -}}
{{- $_ := set $c "tls" (dict "generated" $generated) -}}
{{- else if eq .Values.tls.mode "sidecar" -}}
{{- $_ := set $c "tls" (dict "sidecar" dict) -}}
{{- else if ne .Values.tls.mode "none" -}}
{{- $_ := set $c "tls" (dict "certFile" "/etc/watchproxy/tls/tls.crt" "privateKeyFile" "/etc/watchproxy/tls/tls.key") -}}
{{- end -}}
{{- if and .Values.hostNetwork (not (hasKey (default dict $c.adminAuthentication) "restrictLoopback")) -}}
{{- $_ := set $c "adminAuthentication" (merge (dict "restrictLoopback" true) (default dict $c.adminAuthentication)) -}}
{{- end -}}
{{- if and (not (hasKey $c "goawayChance")) (eq .Values.kind "Deployment") (or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1)) -}}
{{- $_ := set $c "goawayChance" 0.01 -}}
{{- end -}}
{{- dict "apiVersion" "watchproxy.dev/v1alpha1" "kind" "ProxyConfiguration" | mergeOverwrite $c | toYaml -}}
{{- end -}}

{{/* The port of an address. */}}
{{- define "watchproxy.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* The host of an address, without brackets; empty for all hosts. */}}
{{- define "watchproxy.host" -}}
{{- regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" -}}
{{- end -}}

{{/* "true" for an address that only the pod itself can reach. */}}
{{- define "watchproxy.private" -}}
{{- if regexMatch "^(localhost:|127\\.[0-9]+\\.[0-9]+\\.[0-9]+:|\\[::1\\]:)" . -}}true{{- end -}}
{{- end -}}

{{/* "true" if clients are authenticated, by the rule of config.SetDefaults. */}}
{{- define "watchproxy.delegated" -}}
{{- $mode := dig "authentication" "mode" "" .Values.config -}}
{{- if or (eq $mode "delegated") (and (not $mode) (not (include "watchproxy.private" .Values.config.listen))) -}}true{{- end -}}
{{- end -}}

{{/* The seconds of a duration in Go's notation. */}}
{{- define "watchproxy.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9.]+(h|ms|m|s|us|µs|ns)" . -1 -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $total = addf $total (mulf (float64 $number) (get $units (trimPrefix $number .))) -}}
{{- end -}}
{{- $total -}}
{{- end -}}

{{/* The bytes of a quantity, rounded up. */}}
{{- define "watchproxy.bytes" -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
  "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- if kindIs "string" . -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number .)) | ceil -}}
{{- else -}}
{{- float64 . -}}
{{- end -}}
{{- end -}}

{{/* The seconds that a pod may take to end. */}}
{{- define "watchproxy.terminationSeconds" -}}
{{- add .Values.termination.preStopSeconds (include "watchproxy.seconds" (default "5s" .Values.config.drain) | float64 | ceil) .Values.termination.marginSeconds -}}
{{- end -}}
