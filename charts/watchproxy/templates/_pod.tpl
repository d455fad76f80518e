{{/* The proxy's container, in its own pod or in an application's. */}}
{{- define "watchproxy.container" -}}
name: watchproxy
image: {{ include "watchproxy.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.command }}
command: {{ toYaml . | nindent 2 }}
{{- end }}
args:
- serve
- --config=/etc/watchproxy/config/config.yaml
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- with .Values.extraEnv }}
env: {{ toYaml . | nindent 0 }}
{{- end }}
ports:
{{- with include "watchproxy.port" .Values.config.listen }}
{{- if or $.Values.hostNetwork (not (include "watchproxy.private" $.Values.config.listen)) }}
- name: clients
  containerPort: {{ . }}
  {{- with $.Values.hostPort }}
  hostPort: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
- name: admin
  containerPort: {{ include "watchproxy.port" .Values.config.adminListen }}
{{- $private := include "watchproxy.private" .Values.config.adminListen }}
{{- if or .Values.hostNetwork (not $private) }}
{{- $probed := "" }}
{{- if $private }}
{{- $probed = printf ", host: %q" (include "watchproxy.host" .Values.config.adminListen) }}
{{- end }}
startupProbe:
  httpGet: {path: /readyz, port: admin{{ $probed }}}
  {{- with .Values.startupProbe }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
livenessProbe:
  httpGet: {path: /livez, port: admin{{ $probed }}}
  {{- with .Values.livenessProbe }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
readinessProbe:
  httpGet: {path: /readyz, port: admin{{ $probed }}}
  {{- with .Values.readinessProbe }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .Values.termination.preStopSeconds }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ . }}
{{- end }}
resources: {{ toYaml .Values.resources | nindent 2 }}
{{- $security := deepCopy (default dict .Values.securityContext) }}
{{- if eq .Values.kind "Sidecar" }}
{{- /* These settings are on a sidecar's container, because the pod is the application's. */}}
{{- $security = pick (default dict .Values.podSecurityContext) "runAsNonRoot" "seccompProfile" | merge $security }}
{{- end }}
securityContext: {{ include "watchproxy.securityContext" (list . $security) | fromJson | toYaml | nindent 2 }}
volumeMounts:
- name: watchproxy-config
  mountPath: /etc/watchproxy/config
  readOnly: true
{{- if include "watchproxy.mountsCertificate" . }}
- name: watchproxy-tls
  mountPath: /etc/watchproxy/tls
  readOnly: true
{{- end }}
{{- if eq .Values.tls.mode "sidecar" }}
- name: watchproxy-authority
  mountPath: /run/watchproxy/authority
- name: watchproxy-serviceaccount
  mountPath: /run/watchproxy/serviceaccount
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "watchproxy.volumes" -}}
- name: watchproxy-config
  configMap:
    name: {{ include "watchproxy.fullname" . }}
    items:
    - {key: config.yaml, path: config.yaml}
{{- if include "watchproxy.mountsCertificate" . }}
- name: watchproxy-tls
  secret:
    secretName: {{ include "watchproxy.tlsSecret" . }}
{{- end }}
{{- if eq .Values.tls.mode "sidecar" }}
{{- range tuple "authority" "serviceaccount" }}
- name: watchproxy-{{ . }}
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "watchproxy.pod" -}}
metadata:
  labels:
    {{- include "watchproxy.selectorLabels" . | nindent 4 }}
    {{- with merge (deepCopy (default dict .Values.podLabels)) (default dict .Values.commonLabels) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $annotations := deepCopy (default dict .Values.podAnnotations) }}
  {{- if .Values.rollOnConfigChange }}
  {{- $_ := set $annotations "checksum/config" (include "watchproxy.checksum" .) }}
  {{- end }}
  {{- with $annotations }}
  annotations: {{ toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "watchproxy.serviceAccountName" . }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "watchproxy.terminationSeconds" . }}
  securityContext: {{ include "watchproxy.securityContext" (list . .Values.podSecurityContext) | fromJson | toYaml | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.schedulerName }}
  schedulerName: {{ . }}
  {{- end }}
  {{- if .Values.hostNetwork }}
  hostNetwork: true
  {{- end }}
  {{- with default (ternary "ClusterFirstWithHostNet" "" (default false .Values.hostNetwork)) .Values.dnsPolicy }}
  dnsPolicy: {{ . }}
  {{- end }}
  {{- with .Values.dnsConfig }}
  dnsConfig: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.hostAliases }}
  hostAliases: {{ toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{ toYaml . | nindent 2 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- if and .Values.topologySpreadConstraints (eq .Values.kind "Deployment") }}
  topologySpreadConstraints:
  {{- $pods := dict "labelSelector" (dict "matchLabels" (include "watchproxy.selectorLabels" $ | fromYaml)) "matchLabelKeys" (list "pod-template-hash") }}
  {{- range .Values.topologySpreadConstraints }}
  {{- $constraint := merge (deepCopy .) (dict "maxSkew" 1 "whenUnsatisfiable" "ScheduleAnyway") }}
  {{- if not (hasKey . "labelSelector") }}
  {{- $constraint = merge $constraint $pods }}
  {{- end }}
  - {{ toYaml $constraint | nindent 4 | trim }}
  {{- end }}
  {{- end }}
  {{- with .Values.initContainers }}
  initContainers: {{ toYaml . | nindent 2 }}
  {{- end }}
  containers:
  - {{ include "watchproxy.container" . | nindent 4 | trim }}
  {{- with .Values.extraContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  volumes: {{ include "watchproxy.volumes" . | nindent 2 }}
{{- end -}}
